"""Programs that cannot go on where another rank's process died exit so that they are started again."""

from __future__ import annotations

import sys

from .errors import LOST, StepUndone


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
                print("tessera: the program is not to be started again: it would begin at its first "
                      "step, since it has not asked for model.tessera.next_step, made "
                      "tessera.Batches or called tessera.load()", file=sys.stderr)
            report(kind, error, traceback)
        finally:
            if is_lost and can_begin_again:
                raise SystemExit(LOST)  # The interpreter takes a hook's exit as the program's.

    sys.excepthook = report_and_exit
