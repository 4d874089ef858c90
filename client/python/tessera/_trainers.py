"""The trainers that a launcher starts on its node."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time

from ._daemons import die_with_parent
from ._hub import JobEnded
from ._restart import STARTED_AGAIN
from .errors import LOST

_STOP_SECONDS = 10.0
_ALONE_SECONDS = 10.0  # So long ranks may take to end after others; then it is worth a word.
_MAX_LAST_LINE = 500
_SHELLS_SIGNAL = 128  # A shell's status of a program that a signal killed: this and its number.


def _kill_group(process: subprocess.Popen) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _ranks(numbers: list[int]) -> str:
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(map(str, numbers))


class _Output(threading.Thread):
    """Passes a process's lines on, and has the last one that says something."""

    def __init__(self, process: subprocess.Popen, say):
        super().__init__(daemon=True)
        self._process, self._say, self.last = process, say, b""
        self.start()

    def run(self) -> None:
        with self._process.stdout as lines:
            for line in lines:
                self.last = line.strip() or self.last
                self._say(line)


class Trainers:
    """A process for each rank, and a thread that waits for it."""

    def __init__(self, command, environments: dict[int, dict[str, str]], max_restarts: int):
        """environments: by rank, what is set in addition to this process's."""
        self._command, self._environments = command, environments
        self._restarts_left = max_restarts
        self._lock = threading.Lock()
        self._output_lock = threading.Lock()
        self._processes: dict[int, subprocess.Popen] = {}
        self._ending = False
        self._left = set(environments)  # Ranks that have not ended.
        self._first_ended_s: float | None = None  # When the first one did.
        self.failed: JobEnded | None = None
        self.ended = threading.Event()

    def start(self) -> None:
        for rank in self._environments:
            threading.Thread(target=self._look_after, args=(rank,), daemon=True).start()

    def _start(self, rank: int, again: bool) -> subprocess.Popen | None:
        environment = {**os.environ, **self._environments[rank], "PYTHONUNBUFFERED": "1",
                       STARTED_AGAIN: "1" if again else ""}
        with self._lock:
            if self._ending:
                return None
            # A thread's death does not count as the parent's: these threads live until the end.
            process = subprocess.Popen(  # pylint: disable=consider-using-with
                self._command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, start_new_session=True,
                preexec_fn=lambda: die_with_parent(signal.SIGKILL))
            self._processes[rank] = process
            return process

    def _look_after(self, rank: int) -> None:
        again = False
        try:
            while True:
                process = self._start(rank, again)
                if process is None:
                    return
                output = _Output(process, lambda line: self._say(f"[{rank}] ".encode() + line))
                status = process.wait()
                if status >= 0:
                    output.join(_STOP_SECONDS)
                if status < 0 or status == LOST or output.is_alive():
                    _kill_group(process)  # Its data loaders, say, which have its output open.
                output.join()
                if not self._is_to_be_replaced(rank, status, output.last):
                    return
                again = True
        except OSError as error:
            self._fail(f"rank {rank} cannot be started: {error}", 1)
        finally:
            with self._lock:
                self._left.discard(rank)
                if self._first_ended_s is None:
                    self._first_ended_s = time.monotonic()
                if not self._left:
                    self.ended.set()

    def tell_who_goes_on(self) -> None:
        """Once, if some ranks have ended for a while and others have not."""
        with self._lock:
            if (self._first_ended_s is None or not self._left or self._ending or
                    time.monotonic() < self._first_ended_s + _ALONE_SECONDS):
                return
            self._first_ended_s = math.inf
            ended = sorted(set(self._environments) - self._left)
            left = sorted(self._left)
        self._say(f"tessera: still running: {_ranks(left)}; ended without an error: {_ranks(ended)}. A "
                  "step, a save or another call that all ranks make waits for those that ended, and "
                  "is an error after the job's timeout\n".encode())

    def _is_to_be_replaced(self, rank: int, status: int, last: bytes) -> bool:
        if status == 0 or self._ending:
            return False
        said = last.decode("utf-8", "replace")[:_MAX_LAST_LINE]
        exited = f"rank {rank} exited with status {status}" + (f": {said}" if said else "")
        if status > 0 and status != LOST:
            self._fail(exited, status)
            return False
        name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
        ended = exited if status > 0 else f"rank {rank} was killed by {name}"
        with self._lock:
            self._restarts_left -= 1
            out_of_restarts = self._restarts_left < 0
        if out_of_restarts:
            self._fail(f"{ended}, and --max-restarts is used up",
                       status if status > 0 else _SHELLS_SIGNAL - status)
            return False
        self._say(f"tessera: {ended}; it is started again\n".encode())
        return True

    def _say(self, line: bytes) -> None:
        with self._output_lock:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()

    def _fail(self, reason: str, status: int) -> None:
        with self._lock:
            if self.failed is None and not self._ending:
                self.failed = JobEnded(reason, status)
        self.ended.set()

    def stop(self) -> None:
        with self._lock:
            self._ending = True
            alive = [p for p in self._processes.values() if p.poll() is None]
        for process in alive:
            process.terminate()
        for process in alive:
            try:
                process.wait(timeout=_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                pass
            # What it started, too: data loaders, say.
            _kill_group(process)
            process.wait()
