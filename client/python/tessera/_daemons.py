"""Coordinator and worker as children of this process."""

from __future__ import annotations

import concurrent.futures
import ctypes
import os
import pathlib
import queue
import re
import shutil
import signal
import subprocess
import threading
import time

from ._hub import JobEnded
from .errors import LOST, TesseraError

_WAIT_SECONDS = 60.0
MAX_JOBS = 8  # That a program can have at once: one for each model that it shards.
_MAX_DEVICES = 1024  # Of a worker.
_prctl = ctypes.CDLL(None).prctl  # Loaded here: a child may not, before exec.


def programs_folder() -> pathlib.Path:
    given = os.environ.get("TESSERA_PROGRAMS")
    return pathlib.Path(given) if given else pathlib.Path(__file__).parent / "bin"


def launchers_worker(node: int) -> str:
    """Its worker's id. Ranks go to workers in the order of their ids."""
    return f"node-{node:05}"


def is_launchers_worker(worker_id: str) -> bool:
    return re.fullmatch(r"node-\d{5,}", worker_id) is not None


def die_with_parent(number: int = signal.SIGTERM) -> None:
    """In a child, before exec: it gets this signal when the thread that started it ends."""
    _prctl(1, number)


class _Starter:
    """A thread that lives as long as the process, and starts its children."""

    def __init__(self):
        self._tasks: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True, name="tessera-children").start()

    def _run(self) -> None:
        while True:
            task = self._tasks.get()
            task()

    def popen(self, *args, **kwargs) -> subprocess.Popen:
        made: concurrent.futures.Future = concurrent.futures.Future()

        def start():
            try:
                made.set_result(subprocess.Popen(*args, **kwargs))  # pylint: disable=R1732
            except BaseException as error:  # pylint: disable=broad-except
                made.set_exception(error)

        self._tasks.put(start)
        return made.result()


class Daemons:
    """A coordinator, a worker or both, until this process ends. Their files are in one folder."""

    def __init__(self, folder: pathlib.Path):
        self.folder, self.processes, self._starter = folder, [], _Starter()
        self._programs = programs_folder()
        for name in ("tessera-coordinator", "tessera-worker", "tessera-executor"):
            if not (self._programs / name).exists():
                raise TesseraError(f"{self._programs / name} does not exist: the package is "
                                   "incomplete", "NOT_FOUND")

    @property
    def worker_address(self) -> str:
        return f"unix:{self.folder}/sockets/worker.sock"

    def start_coordinator(self, ready: pathlib.Path, *flags) -> None:
        """ready: a file that is there once the coordinator listens."""
        self._start("coordinator", ready, "--ephemeral", *flags)

    def start_worker(self, coordinator: str, worker_id: str, ranks: int, *flags) -> None:
        sockets = self.folder / "sockets"
        sockets.mkdir(mode=0o700)
        self._start("worker", sockets / "worker.sock", "--coordinator", coordinator,
                    "--worker-id", worker_id, "--max-ranks-of-job", ranks,
                    "--devices", max(ranks, min(MAX_JOBS * ranks, _MAX_DEVICES)), "--keep-memory", 0,
                    "--socket-dir", sockets,
                    "--executor-binary", self._programs / "tessera-executor", *flags)

    def _start(self, name: str, ready: pathlib.Path, *flags) -> None:
        command = [str(part) for part in (self._programs / f"tessera-{name}", *flags)]
        with open(self.folder / f"{name}.log", "wb") as log:
            process = self._starter.popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, preexec_fn=die_with_parent)
        self.processes.append((name, process))
        deadline = time.monotonic() + _WAIT_SECONDS
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise TesseraError(f"the {name} did not start; its log ends:\n{self._log(name)}",
                                   "UNAVAILABLE")
            time.sleep(0.01)

    def check(self) -> None:
        """Errors: JobEnded  the coordinator or the worker has ended."""
        for name, process in self.processes:
            if process.poll() is not None:
                raise JobEnded(f"the {name} ended with status {process.returncode}; its log "
                               f"ends:\n{self._log(name)}", LOST)

    def _log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-2000:]

    def stop(self) -> None:
        for _, process in reversed(self.processes):
            process.terminate()
        for _, process in self.processes:
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()
        shutil.rmtree(self.folder, ignore_errors=True)
