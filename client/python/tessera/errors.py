"""Errors of the job and the service. All are TesseraError."""

from __future__ import annotations

_NAMES = {
    1: "CANCELLED", 2: "UNKNOWN", 3: "INVALID_ARGUMENT", 4: "DEADLINE_EXCEEDED", 5: "NOT_FOUND",
    6: "ALREADY_EXISTS", 7: "PERMISSION_DENIED", 8: "RESOURCE_EXHAUSTED", 9: "FAILED_PRECONDITION",
    10: "ABORTED", 11: "OUT_OF_RANGE", 12: "UNIMPLEMENTED", 13: "INTERNAL", 14: "UNAVAILABLE",
    15: "DATA_LOSS", 16: "UNAUTHENTICATED",
}
ABORTED = 10
# Exit status of what another try may bring to its end, as sysexits.h has it: EX_TEMPFAIL.
LOST = 75


class TesseraError(RuntimeError):
    """What a call to Tessera failed with.

    code: gRPC's name of the error, such as "INVALID_ARGUMENT".
    """

    def __init__(self, message: str, code: str = "UNKNOWN"):
        super().__init__(message)
        self.code = code


class StepUndone(TesseraError):
    """A process of the job died, and the step was undone on all ranks: do it again.

    `opt.step(closure)` and `@tessera.repeatable(model)` do that by themselves. A program that ends
    by it exits with status 75, for which `tessera run` starts it again.
    """


class OutsideWindowError(TesseraError):
    """A parameter was read while it is sharded, or was written.

    Read whole parameters with `model.tessera.summon_full_params()` or `model.state_dict()`.
    """


def from_code(code: int, message: str) -> TesseraError:
    kind = StepUndone if code == ABORTED else TesseraError
    return kind(message, _NAMES.get(code, "UNKNOWN"))


def code_of(error: BaseException) -> int:
    """The number for the error's code; 2 (UNKNOWN) for other exceptions."""
    name = getattr(error, "code", "UNKNOWN")
    return next((code for code, known in _NAMES.items() if known == name), 2)
