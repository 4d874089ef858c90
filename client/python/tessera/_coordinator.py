"""A coordinator that this launcher did not start."""

from __future__ import annotations

import json
import subprocess
import time

from ._daemons import is_launchers_worker, programs_folder
from ._hub import JobEnded, say
from .errors import LOST

_RETRY_SECONDS = 1.0
_CALL_SECONDS = 60.0


def delete_jobs(address: str, job: str, flags: list[str], seconds: float) -> None:
    """Deletes the job there, and others that launchers' workers had, of a program with several models.

    Waits so long for the coordinator to answer.
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
    """Why it could not be done; None: the coordinator has no such jobs."""
    try:
        known = json.loads(_call("jobs", "--json", "--coordinator", address, *flags))
        for each in known["jobs"]:
            workers = [rank.get("worker_id", "") for rank in each["ranks"]]
            if each["job_id"] == job or workers and all(map(is_launchers_worker, workers)):
                say(f"job '{each['job_id']}' of earlier launchers is deleted")
                _call("jobs", "--coordinator", address, *flags, "delete", each["job_id"])
    except (OSError, ValueError, KeyError, TypeError, subprocess.TimeoutExpired) as error:
        return str(error)
    except subprocess.CalledProcessError as error:
        return error.stderr.strip() or f"`tessera jobs` exited with {error.returncode}"
    return None


def _call(*arguments: str) -> str:
    return subprocess.run([programs_folder() / "tessera", *arguments], check=True, text=True,
                          capture_output=True, timeout=_CALL_SECONDS).stdout
