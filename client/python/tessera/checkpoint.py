"""Checkpoints and models in files. All calls are collective, between steps; paths are absolute.

A call that the death of a process ends is made again. One in the middle of a step raises StepUndone.
"""

from __future__ import annotations

import contextlib
import ctypes as C
import json
import os

import torch

from . import _dcp, _own_state, _sharded
from ._library import CheckpointOptions, lib
from ._restart import program
from .errors import TesseraError


def register_state(name: str, state, model) -> None:
    """`state` (with state_dict() and load_state_dict()) is in each checkpoint of the model's job.

    Each rank saves its own: a data loader's position, say. Where more ranks continue than have saved,
    load() says what the others get. What state_dict() returns must be
    readable by torch.load(weights_only=True): tensors, numbers, strings, lists and dicts.
    In a checkpoint that `tessera save` requests, a state that can be iterated over (a loader) is as
    opt.step() leaves it, and all others (LR schedulers, averages) as the loop leaves them: what
    the next forward or step finds. One that is registered after load() is set from it then.
    """
    if not (hasattr(state, "state_dict") and hasattr(state, "load_state_dict")):
        raise TesseraError(f"state '{name}' has no state_dict() and load_state_dict()",
                           "INVALID_ARGUMENT")
    sharded = _sharded.of(model)
    sharded.states[name] = state
    _own_state.claim(sharded, name)


def _path(path) -> bytes:
    text = os.fspath(path)
    return (text if "://" in text else os.path.abspath(text)).encode()


def _new_path(path) -> bytes:
    """With the folders above it, which torch's DCP makes as well."""
    found = _path(path)
    if b"://" not in found:
        with contextlib.suppress(OSError):  # The workers, which write, say what is wrong.
            os.makedirs(os.path.dirname(found), exist_ok=True)
    return found


def save(model, path, *, in_background: bool = False, keep_newest: int = 0,
         overwrite: bool = True, max_file_bytes: int = 0, random_state: bool = True) -> None:
    """All of the job's state in a folder: parameters, optimizer, buffers, registered states.

    path: folders above it are made, where this process may make them.
    in_background: returns at once; await_save() waits for it. keep_newest: how many checkpoints
    stay in the parent folder; 0: all.
    """
    sharded = _sharded.of(model)
    sharded.check_whole("save()")
    sharded.make_requested_save()
    own = _own_state.of_step(sharded, random_state)
    _own_state.add_of_loop(sharded, own)
    encoded = _own_state.encode(own)
    options = CheckpointOptions(
        trainer_state=encoded, trainer_state_bytes=len(encoded),
        max_file_bytes=max_file_bytes, keep_newest=keep_newest, in_background=in_background,
        keep_existing=not overwrite)
    sharded.between_steps(
        lambda: lib.save_checkpoint(sharded.session, _new_path(path), C.byref(options)))
    sharded.saves_in_background |= in_background


def await_save(model) -> None:
    """Waits for a save in the background. Errors: what it failed with."""
    sharded = _sharded.of(model)
    sharded.saves_in_background = False
    lib.await_save(sharded.session)

def load(model, path, *, strict: bool = True, model_only: bool = False) -> dict:
    """Continues from a checkpoint. Returns {"step": ..., "missing": [...], "unexpected": [...]}.

    The job may have another world size, other units and another strategy than the one that saved.
    Ranks that the saved job did not have take LR schedulers and modules that were registered, and
    param groups, from what rank 0 saved; nothing else.
    """
    sharded = _sharded.of(model)
    sharded.check_whole("load()")
    sharded.make_requested_save()
    description, own, size = C.c_void_p(), C.c_void_p(), C.c_size_t()
    sharded.windows.await_gpu()
    sharded.between_steps(
        lambda: lib.load_checkpoint(sharded.session, _path(path), int(strict), int(model_only),
                                    C.byref(description), C.byref(own), C.byref(size)))
    try:
        loaded = json.loads(C.string_at(description).decode("utf-8", "replace"))
        state = C.string_at(own, size.value)
    finally:
        lib.free(description)
        lib.free(own)
    if not model_only:
        program.continues, sharded.continues_job = True, False
        if state:
            _own_state.take(sharded, state, sharded.rank < loaded["world_size"])
    return loaded


def save_model(model, path, *, dtype: torch.dtype | None = None, max_file_bytes: int = 0) -> None:
    """Parameters and buffers as safetensors: a file, or a folder of files of at most so many bytes."""
    name = None if dtype is None else {torch.float32: b"fp32", torch.bfloat16: b"bf16",
                                       torch.float16: b"fp16"}.get(dtype)
    if dtype is not None and name is None:
        raise TesseraError(f"dtype: {dtype} is not float32, bfloat16 or float16",
                           "INVALID_ARGUMENT")
    sharded = _sharded.of(model)
    sharded.check_whole("save_model()")
    sharded.between_steps(
        lambda: lib.save_model(sharded.session, _new_path(path), max_file_bytes, name))


def load_model(model, path, *, strict: bool = True) -> dict:
    """Parameters and buffers from safetensors, or from a folder that torch's DCP wrote.

    Names are the model's own. Returns {"missing": [...], "unexpected": [...]}; with `strict` both
    are errors. On all ranks or on none.
    A folder of DCP's (with .metadata) is read by torch, in this process: torch unpickles its
    metadata, which can run any code. Load only folders that you trust.
    """
    sharded = _sharded.of(model)
    sharded.attach()
    sharded.check_whole("load_model()")
    sharded.make_requested_save()
    sharded.windows.await_gpu()

    def read():
        loaded = _dcp.load_model(sharded, _path(path).decode(), strict)
        if loaded is not None:
            return loaded
        return json.loads(lib.text(lib.load_model, sharded.session, _path(path), int(strict)))

    return sharded.between_steps(read)
