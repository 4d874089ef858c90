"""The other models of a program, in the steps of one: what a closure did with them is undone with it."""

from __future__ import annotations

import contextlib
import ctypes as C
import struct
import weakref
import zlib

from ._daemons import MAX_JOBS
from ._library import lib
from ._restart import program
from ._windows import Windows
from .errors import ABORTED, StepUndone, TesseraError

_EPOCHS = struct.Struct(f"<{2 * MAX_JOBS}q")  # Jobs, by a sum of their names, and epochs.


class OtherModels:
    """Of one model. Each has a job of its own. One thread."""

    def __init__(self, sharded, attached):
        """attached: all models of the program that are."""
        self._sharded, self._attached = sharded, attached
        self._used: weakref.WeakSet[Windows] = weakref.WeakSet()  # By closures so far.
        self._with_gradients: list = []  # When the step began.
        self._failed = 0  # Exchanges in a row.

    def _all(self) -> list:
        """In an order that is every rank's."""
        found = [other for other in self._attached if other is not self._sharded]
        return sorted(found, key=lambda other: other.job_id())[:MAX_JOBS]

    @contextlib.contextmanager
    def of_a_step(self):
        """Around a step with all its repetitions."""
        others = self._all()
        self._failed = 0
        self._with_gradients = [other for other in others if lib.within_step(other.session)]
        for other in others:
            other.note_buffers()
        Windows.used = self._used
        try:
            yield
        finally:
            Windows.used = None

    def undo(self) -> None:
        """Before a closure is run again: undoes on all ranks what it did with others.

        With all that any closure has used: other ranks may have come to one that this rank has not.
        """
        for other in self._all():
            self._renew(other, f"undone with the step of job '{self._sharded.job_id()}'",
                        ends_epoch=other.windows in self._used)
            other.restore_buffers()

    def _renew(self, other, why: str, ends_epoch: bool) -> None:
        """Has `other` take part in its job's newest epoch, after the one that this ends."""
        before = lib.epoch(other.session)
        if ends_epoch:
            lib.fail(other.session, ABORTED, why.encode())
        lib.recover(other.session)
        if lib.epoch(other.session) == before:
            return
        other.is_recovered()
        if other in self._with_gradients:
            other.windows.lost = (f"gradients of job '{other.job_id()}' are gone: {why}; do its "
                                  "forward and backward again")

    def meet(self, is_first: bool) -> None:
        """Before a closure: has all ranks be in the same epochs of the others' jobs.

        A rank hears of the end of another job's epoch only where it uses that model. Without this, one
        that has heard of it and one that has not would wait for each other, in different jobs.
        Errors: FAILED_PRECONDITION  the ranks are at different models' operations.
        """
        others, session = self._all(), self._sharded.session
        if not others or self._sharded.world_size == 1:
            return
        if is_first and lib.within_step(session):
            return  # Its memory has gradients. All ranks have some.
        while True:
            epochs = self._exchange(others, session)
            if all(len(found) == 1 for found in epochs.values()):
                return
            for other in others:
                if lib.epoch(other.session) < max(epochs[_number_of(other)]):
                    self._renew(other, "a later epoch runs", ends_epoch=True)

    def _exchange(self, others, session) -> dict[int, set[int]]:
        """Epochs of all ranks, by job."""
        own = [0] * (2 * MAX_JOBS)
        for place, other in enumerate(others):
            own[2 * place:2 * place + 2] = _number_of(other), lib.epoch(other.session)
        gathered = C.create_string_buffer(_EPOCHS.size * self._sharded.world_size)
        try:
            lib.all_gather(session, _EPOCHS.pack(*own), _EPOCHS.size, gathered)
        except StepUndone:
            self._failed += 1
            if self._failed < 2:
                raise
            # Nothing compares the order of operations of different jobs.
            program.is_elsewhere = True
            raise TesseraError(
                f"job '{self._sharded.job_id()}': after a process died its ranks are at operations of "
                "different models, and wait for each other: all programs have to be started again",
                "FAILED_PRECONDITION") from None
        self._failed = 0
        epochs: dict[int, set[int]] = {}
        for numbers in _EPOCHS.iter_unpack(gathered.raw):
            for job, epoch in zip(numbers[::2], numbers[1::2]):
                epochs.setdefault(job, set()).add(epoch)
        return epochs


def _number_of(model) -> int:
    return zlib.crc32(model.job_id().encode())
