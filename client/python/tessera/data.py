"""Batches that keep step with the job: after a resume, and where a rank was killed."""

from __future__ import annotations

from typing import Any, Iterator

from . import _sharded
from .checkpoint import register_state
from .errors import TesseraError


class Batches:
    """The batches of a stateful loader, epoch after epoch: each for the step that is to be taken.

        loader = torchdata.stateful_dataloader.StatefulDataLoader(data, batch_size=8, sampler=...)
        for batch in tessera.Batches(loader, model):
            opt.step(lambda: ...)

    Its position is in the job's checkpoints, by tessera.register_state(name): a load in the middle of
    an epoch continues with the next batch, in the same world size. A process that takes the place of a
    killed one passes over the batches of the steps before, so the loader's order must be the same each
    time: seed its sampler. set_epoch() of a sampler is called. Endless: the caller breaks.

    loader: has state_dict() and load_state_dict().
    per_step: batches of one step.
    Errors: INVALID_ARGUMENT  the loader is not stateful; FAILED_PRECONDITION  the model is not
      attached, or the loader has no batches.
    """

    def __init__(self, loader, model, *, per_step: int = 1, name: str = "loader"):
        if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
            raise TesseraError(
                f"{type(loader).__name__} has no state_dict() and load_state_dict(): use torchdata's "
                "StatefulDataLoader", "INVALID_ARGUMENT")
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
            # One that was restored at the end of an epoch has none left of it.
            if is_empty and not self._is_restored:
                raise TesseraError("the loader has no batches", "FAILED_PRECONDITION")
            self._is_restored = False
            self._epoch += 1

    def state_dict(self) -> dict[str, Any]:
        """Of the loader, and the position."""
        return {"loader": self._loader.state_dict(), "epoch": self._epoch, "given": self._given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Before the loop: one that runs goes on with its old loader's iterator."""
        self._loader.load_state_dict(state["loader"])
        self._epoch, self._given = state["epoch"], state["given"]
        self._is_restored = True
