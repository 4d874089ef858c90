"""Batches that follow the job's steps: after a resume, and after the death of a rank."""

from __future__ import annotations

from typing import Any, Iterator

from . import _sharded
from .checkpoint import register_state
from .errors import TesseraError


class Batches:
    """Iterates over a stateful loader, epoch after epoch, and yields the batch of the next step.

        loader = torchdata.stateful_dataloader.StatefulDataLoader(data, batch_size=8, sampler=...)
        for batch in tessera.Batches(loader, model):
            opt.step(lambda: ...)

    The position is part of the job's checkpoints (tessera.register_state). After tessera.load() in
    the middle of an epoch the next batch follows; the world size must be the same then. A process
    that replaces a killed one skips the batches of the steps that were taken, so the loader's order
    must be the same each time: seed its sampler. Steps that were skipped (skip_non_finite, or by a
    GradScaler) do not count there, so a replacement repeats as many batches. The sampler's
    set_epoch() is called. No end.

    loader: has state_dict() and load_state_dict().
    per_step: number of batches in a step.
    name: the state's name in checkpoints.
    Errors: INVALID_ARGUMENT  the loader is not stateful; FAILED_PRECONDITION  the model is not
      attached, or the loader has no batches.
    """

    def __init__(self, loader, model, *, per_step: int = 1, name: str = "loader"):
        if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
            raise TesseraError(
                f"{type(loader).__name__} has no state_dict() and load_state_dict(): use "
                "torchdata's StatefulDataLoader", "INVALID_ARGUMENT")
        self._loader, self._sharded, self._per_step = loader, _sharded.of(model), per_step
        self._epoch = self._given = 0  # Batches since the job's first step.
        self._is_restored = False
        register_state(name, self, model)

    def __iter__(self) -> Iterator[Any]:
        while True:
            sampler = getattr(self._loader, "sampler", None)
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(self._epoch)
            is_empty = True
            for batch in self._loader:
                is_empty = False
                self._given += 1
                if self._given > (self._sharded.next_step - 1) * self._per_step:
                    yield batch
            # After a load at the end of an epoch no batch of it is left.
            if is_empty and not self._is_restored:
                raise TesseraError("the loader has no batches", "FAILED_PRECONDITION")
            self._is_restored = False
            self._epoch += 1

    def state_dict(self) -> dict[str, Any]:
        """The loader's state, and the position."""
        return {"loader": self._loader.state_dict(), "epoch": self._epoch, "given": self._given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Before the loop: a running loop keeps the loader's old iterator."""
        self._loader.load_state_dict(state["loader"])
        self._epoch, self._given = state["epoch"], state["given"]
        self._is_restored = True
