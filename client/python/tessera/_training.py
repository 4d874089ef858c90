"""What `tessera` has for training code."""

from __future__ import annotations

import ctypes as _ctypes
import signal as _signal
import threading as _threading

import torch as _torch

from . import live
from ._cluster import Context, init
from ._library import lib as _lib
from ._plan import Precision
from ._sharded import Sharded, shard, take_outside_window as _take_outside_window
from .checkpoint import await_save, load, load_model, register_state, save, save_model
from .data import Batches
from .errors import OutsideWindowError, StepUndone, TesseraError
from .optim import SGD, Adam, AdamW, LocalOptimizer, repeatable
from .scaler import GradScaler

__version__ = _lib.version().decode()
__all__ = ["Adam", "AdamW", "Batches", "Context", "GradScaler", "LocalOptimizer",
           "OutsideWindowError", "Precision", "SGD", "Sharded", "StepUndone", "TesseraError",
           "await_save", "init", "live", "load", "load_model", "register_state", "repeatable", "save",
           "save_model", "shard"]


def _advice(frame) -> str:
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("tessera."):
            break  # Within a closure, say: what is called by this package's optimizers is no other's.
        if (module.startswith("torch.optim.") and
                isinstance(frame.f_locals.get("self"), _torch.optim.Optimizer)):
            return ("an optimizer of torch cannot update a sharded model: make tessera.AdamW(model), "
                    "or tessera.LocalOptimizer(model, ...) for one that the job does not have")
        frame = frame.f_back
    return ("model.state_dict() and model.tessera.summon_full_params() give whole values, on all "
            "ranks alike")


def _on_outside_window(signum, frame):
    message = _take_outside_window()
    if message:
        raise OutsideWindowError(f"{message.removeprefix('tessera: ')}; {_advice(frame)}",
                                 "FAILED_PRECONDITION")
    if callable(_before_ours):
        _before_ours(signum, frame)


# SIGRTMIN + 7: nobody else's by convention. Python raises for it once the reading call returns.
_SIGNAL = _signal.SIGRTMIN + 7
_before_ours = None
if _threading.current_thread() is _threading.main_thread():
    _before_ours = _signal.signal(_SIGNAL, _on_outside_window)
    _lib.on_outside_window(
        _ctypes.cast(_ctypes.pythonapi.PyErr_SetInterruptEx, _ctypes.c_void_p), int(_SIGNAL))
