"""Programs that cannot go on where another rank's process died exit so that they are started again."""

from __future__ import annotations

import sys

from .errors import LOST, StepUndone

_installed, _required = False, False


def require() -> None:
    """The ranks are at different places of their programs: see tessera_restart_required()."""
    global _required
    _required = True


def _is_of_a_loss(error: BaseException | None) -> bool:
    """Whether `error` is, or was raised while such a one was handled."""
    while isinstance(error, Exception):
        if _required or isinstance(error, StepUndone):
            return True
        error = error.__cause__ or error.__context__
    return False


def exit_for_restart(look) -> None:
    """Has the program exit with LOST where an error of a loss ends it.

    look: called before; calls require() where that is so.
    """
    global _installed
    if _installed:
        return
    _installed, report = True, sys.excepthook

    def report_and_exit(kind, error, traceback):
        try:
            report(kind, error, traceback)
        finally:
            look()
            if _is_of_a_loss(error):
                raise SystemExit(LOST)  # The interpreter takes a hook's exit as the program's.

    sys.excepthook = report_and_exit
