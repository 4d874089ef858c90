"""Programs that cannot go on where another rank's process died exit so that they are started again."""

from __future__ import annotations

import os
import sys

from .errors import LOST, StepUndone, TesseraError

STARTED_AGAIN = "TESSERA_STARTED_AGAIN"  # Set by `tessera run` for a trainer that it starts again.
_BEGINS_AT_ITS_FIRST_STEP = (
    "it would begin at its first step, since it has not asked for model.tessera.next_step, made "
    "tessera.Batches or called tessera.load()")


class _Program:
    """This process's: what of it matters when it ends."""

    def __init__(self):
        self.has_hook = False
        self.is_elsewhere = False  # Than other ranks: see tessera_restart_required().
        self.took_step = False
        self.continues = False  # It asks where to go on, so that begun again it does no step twice.

    def is_ended_by_a_loss(self, error: BaseException | None) -> bool:
        """Whether `error` is of one, or was raised while such an error was handled."""
        while isinstance(error, Exception):
            if self.is_elsewhere or isinstance(error, StepUndone):
                return True
            error = error.__cause__ or error.__context__
        return False

    def check_start(self, next_step: int) -> None:
        """Before a step. Errors: FAILED_PRECONDITION  it would do again what others did before."""
        if (next_step > 1 and not self.took_step and not self.continues
                and os.environ.get(STARTED_AGAIN)):
            raise TesseraError(
                f"the program was started again after a process died, at step {next_step}, and cannot "
                f"go on: {_BEGINS_AT_ITS_FIRST_STEP}", "FAILED_PRECONDITION")


program = _Program()


def exit_for_restart(look) -> None:
    """Has the program exit with LOST where a loss ends it, if it can be begun again.

    look: called before; sets program.is_elsewhere where that is so.
    """
    if program.has_hook:
        return
    program.has_hook, report = True, sys.excepthook

    def report_and_exit(kind, error, traceback):
        look()
        is_lost = program.is_ended_by_a_loss(error)
        can_begin_again = program.continues or not program.took_step
        try:
            if is_lost and not can_begin_again:  # Before the error, which launchers quote.
                print("tessera: the program is not to be started again: "
                      f"{_BEGINS_AT_ITS_FIRST_STEP}", file=sys.stderr)
            report(kind, error, traceback)
        finally:
            if is_lost and can_begin_again:
                raise SystemExit(LOST)  # The interpreter takes a hook's exit as the program's.

    sys.excepthook = report_and_exit
