"""Fully sharded data parallelism for PyTorch, as a service that survives the death of any process.

    import torch, tessera

    tessera.init()
    model = tessera.shard(model, units=[Block])
    opt = tessera.AdamW(model, lr=3e-4, max_grad_norm=1.0)
    for batch in loader:
        def closure():
            loss = model(**batch).loss
            loss.backward()
            return loss
        loss = opt.step(closure)         # repeated if a rank died

Parameters are readable while their unit runs; elsewhere a read raises OutsideWindowError. Whole
values: model.state_dict(), model.tessera.summon_full_params(). Files: tessera.save, tessera.load.

Run it with `python train.py` (one rank), `torchrun --nproc-per-node 4 train.py`, or
`tessera run -n 4 train.py`, which also starts a rank again that was killed, and runs over several
nodes (`tessera run --help`).
"""

from __future__ import annotations

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from ._training import *

__all__ = ["Adam", "AdamW", "Batches", "Context", "GradScaler", "LocalOptimizer",
           "OutsideWindowError", "Precision", "SGD", "Sharded", "StepUndone", "TesseraError",
           "await_save", "init", "live", "load", "load_model", "register_state", "repeatable", "save",
           "save_model", "shard"]


def __getattr__(name: str):
    """All of it is in _training, which loads PyTorch: the launcher does without."""
    if name in __all__ or name == "__version__":
        found = getattr(_importlib.import_module("._training", __name__), name)
        globals()[name] = found
        return found
    module = f"{__name__}.{name}"
    try:
        return _importlib.import_module(module)  # tessera.optim, say.
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
    raise AttributeError(f"module 'tessera' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
