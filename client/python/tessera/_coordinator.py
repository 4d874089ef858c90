"""A coordinator that this launcher did not start."""

from __future__ import annotations

import json
import subprocess
import time

from ._daemons import programs_folder
from ._hub import JobEnded, say
from .errors import LOST

_RETRY_SECONDS = 1.0
_CALL_SECONDS = 60.0


def delete_job(address: str, job: str, flags: list[str], seconds: float) -> None:
    """Deletes the job there, if there is one. Waits so long for the coordinator to answer.

    Errors: JobEnded  it does not, or refuses; with its last answer
    """
    deadline, said = time.monotonic() + seconds, None
    while True:
        why = _try_to_delete(address, job, flags)
        if why is None:
            return
        if time.monotonic() > deadline:
            raise JobEnded(f"the coordinator at {address} did not answer within "
                           f"{seconds:.0f} s: {why}", LOST)
        if why != said:
            say(f"node 0 waits for the coordinator at {address}, up to {seconds:.0f} s: {why}")
            said = why
        time.sleep(_RETRY_SECONDS)


def _try_to_delete(address: str, job: str, flags: list[str]) -> str | None:
    """Why it could not be done; None: the coordinator has no such job."""
    try:
        known = json.loads(_call("jobs", "--json", "--coordinator", address, *flags))
        if any(each["job_id"] == job for each in known["jobs"]):
            say(f"job '{job}' of earlier launchers is deleted")
            _call("jobs", "--coordinator", address, *flags, "delete", job)
    except (OSError, ValueError, KeyError, TypeError, subprocess.TimeoutExpired) as error:
        return str(error)
    except subprocess.CalledProcessError as error:
        return error.stderr.strip() or f"`tessera jobs` exited with {error.returncode}"
    return None


def _call(*arguments: str) -> str:
    return subprocess.run([programs_folder() / "tessera", *arguments], check=True, text=True,
                          capture_output=True, timeout=_CALL_SECONDS).stdout
