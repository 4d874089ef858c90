"""Programs that cannot go on where another rank's process died exit so that they are started again."""

from __future__ import annotations

import sys

from .errors import LOST, StepUndone, TesseraError

_installed = False


def exit_for_restart(is_required) -> None:
    """Has the program exit with LOST if StepUndone ends it, or an error while is_required()."""
    global _installed
    if _installed:
        return
    _installed, report = True, sys.excepthook

    def report_and_exit(kind, error, traceback):
        report(kind, error, traceback)
        if isinstance(error, StepUndone) or (isinstance(error, TesseraError) and is_required()):
            raise SystemExit(LOST)  # The interpreter takes a hook's exit as the program's.

    sys.excepthook = report_and_exit
