"""Where the job's coordinator and worker are: given, the launcher's, or a cluster made here."""

from __future__ import annotations

import atexit
import concurrent.futures
import ctypes
import dataclasses
import hashlib
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
import time

from .errors import TesseraError

_WAIT_SECONDS = 60.0
_WAIT_FOR_RANK_0_SECONDS = 600.0  # It may have more to do before it attaches.


@dataclasses.dataclass
class Context:
    """What this process is in its job."""

    coordinator: str | None  # None, as the worker: a cluster of its own, which attaching makes.
    worker: str | None
    job: str
    rank: int
    world_size: int
    local_rank: int
    tls: tuple[str, str, str] | None = None
    insecure: bool = False
    gpu: int | None = None
    timeouts: dict[str, float] = dataclasses.field(default_factory=dict)

    def addresses(self) -> dict:
        found = {**{f"{name}_timeout_seconds": seconds for name, seconds in self.timeouts.items()},
                 "coordinator_address": self.coordinator.encode(),
                 "worker_address": self.worker.encode(), "insecure_connect": self.insecure}
        if self.tls:
            keys = ("tls_certificate_path", "tls_key_path", "tls_ca_path")
            found.update({key: path.encode() for key, path in zip(keys, self.tls)})
        return found

    def leave(self) -> None:
        pass


_context: Context | None = None
_own: "Cluster | None" = None


def context(gpu: int | None = None) -> Context:
    """Of init(); calls it where nobody has. gpu: the model's, for a cluster that is made here."""
    found = _context if _context is not None else init()
    if found.coordinator is None:
        found.coordinator, found.worker = _make_cluster(
            found.rank, found.world_size, gpu if found.gpu is None else found.gpu)
    return found


def is_initialized() -> bool:
    """Whether init() was called."""
    return _context is not None


def _number(name: str) -> int | None:
    text = os.environ.get(name)
    if text is None or text == "":
        return None
    try:
        return int(text)
    except ValueError:
        raise TesseraError(f"{name}={text!r} in the environment is not a number",
                           "INVALID_ARGUMENT") from None


def init(*, coordinator: str | None = None, worker: str | None = None, job: str | None = None,
         rank: int | None = None, world_size: int | None = None,
         tls: tuple[str, str, str] | None = None, insecure: bool = False,
         gpu: int | None = None, timeouts: dict[str, float] | None = None) -> Context:
    """Finds the job's coordinator and worker. Arguments come before the environment.

    TESSERA_COORDINATOR, TESSERA_WORKER, TESSERA_JOB and RANK, WORLD_SIZE, LOCAL_RANK are what
    `tessera run` sets. With torchrun's variables alone the ranks of one node make a cluster of
    their own; with none of them this process is a job of one rank.
    tls: paths of certificate, key and CA, as PEM.
    timeouts: seconds, by "attach" (to the worker; 60), "operation" (of each wait for other ranks;
      600: more where one rank does something long alone) and "recover" (after a death; 120).
    gpu: for a cluster of its own: the GPU of its rank, as CUDA numbers it; None: the model's, if it
      is on one.
    """
    global _context
    if _context is not None:
        raise TesseraError("init() was called already", "FAILED_PRECONDITION")
    rank = _number("RANK") if rank is None else rank
    world_size = _number("WORLD_SIZE") if world_size is None else world_size
    if (rank is None) != (world_size is None):
        raise TesseraError("RANK and WORLD_SIZE: one is set and the other is not",
                           "INVALID_ARGUMENT")
    rank, world_size = (0, 1) if rank is None else (rank, world_size)
    if not 0 <= rank < world_size:
        raise TesseraError(f"rank {rank} of {world_size}: not in [0, {world_size})",
                           "INVALID_ARGUMENT")
    local_rank = _number("LOCAL_RANK")
    coordinator = coordinator or os.environ.get("TESSERA_COORDINATOR")
    worker = worker or os.environ.get("TESSERA_WORKER")
    if (coordinator is None) != (worker is None):
        raise TesseraError("the addresses of both coordinator and worker are needed, or of neither",
                           "INVALID_ARGUMENT")
    _check_one_node(coordinator, world_size)
    unknown = set(timeouts or {}) - {"attach", "operation", "recover"}
    if unknown:
        raise TesseraError(f"timeouts: {', '.join(sorted(unknown))} is none of attach, operation, "
                           "recover", "INVALID_ARGUMENT")
    _context = Context(coordinator, worker, job or os.environ.get("TESSERA_JOB") or "train", rank,
                       world_size, rank if local_rank is None else local_rank, tls, insecure, gpu,
                       dict(timeouts or {}))
    return _context


def programs_folder() -> pathlib.Path:
    given = os.environ.get("TESSERA_PROGRAMS")
    return pathlib.Path(given) if given else pathlib.Path(__file__).parent / "bin"


def _check_one_node(coordinator: str | None, world_size: int) -> None:
    local_size = _number("LOCAL_WORLD_SIZE")
    if coordinator is None and local_size is not None and local_size != world_size:
        raise TesseraError(
            f"this node has {local_size} of {world_size} ranks: a job over several nodes needs a "
            "coordinator and workers: start them and set TESSERA_COORDINATOR and TESSERA_WORKER",
            "FAILED_PRECONDITION")


def _make_cluster(rank: int, world_size: int, gpu: int | None) -> tuple[str, str]:
    global _own
    if gpu is not None and world_size > 1:
        raise TesseraError(
            f"{world_size} ranks on GPUs need a coordinator, and a worker for each GPU: start them "
            "and set TESSERA_COORDINATOR and TESSERA_WORKER", "FAILED_PRECONDITION")
    if world_size == 1:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera-"))
        _own = Cluster(folder, 1, gpu)
    else:
        folder = _shared_folder()
        if rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o700)
            _own = Cluster(folder, world_size)
        else:
            _await(folder / "ready", "rank 0 to start the cluster")
    found = addresses_in(folder)
    return found["TESSERA_COORDINATOR"], found["TESSERA_WORKER"]


def addresses_in(folder: pathlib.Path) -> dict[str, str]:
    """Of the cluster whose folder this is, as the environment's variables."""
    return {"TESSERA_COORDINATOR": f"unix:{folder}/coordinator.sock",
            "TESSERA_WORKER": f"unix:{folder}/sockets/worker.sock"}


def _shared_folder() -> pathlib.Path:
    """One for the ranks that one torchrun started."""
    parts = [os.environ.get(name, "") for name in
             ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")]
    name = hashlib.sha256("|".join(parts + [str(os.getppid())]).encode()).hexdigest()[:16]
    return pathlib.Path(tempfile.gettempdir()) / f"tessera-{os.getuid()}-{name}"


def _await(path: pathlib.Path, what: str) -> None:
    deadline = time.monotonic() + _WAIT_FOR_RANK_0_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise TesseraError(f"waited {_WAIT_FOR_RANK_0_SECONDS:.0f} s for {what} ({path})",
                               "DEADLINE_EXCEEDED")
        time.sleep(0.02)


_prctl = ctypes.CDLL(None).prctl  # Loaded here: a child may not, before exec.


def _die_with_parent() -> None:
    # In the child, before exec: it ends when the thread that started it does.
    _prctl(1, signal.SIGTERM)


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


class Cluster:
    """A coordinator and a worker, children of this process, until it ends."""

    def __init__(self, folder: pathlib.Path, ranks: int, gpu: int | None = None):
        self.folder, self.processes, self._starter = folder, [], _Starter()
        programs = programs_folder()
        for name in ("tessera-coordinator", "tessera-worker", "tessera-executor"):
            if not (programs / name).exists():
                raise TesseraError(f"{programs / name} does not exist: the package is incomplete",
                                   "NOT_FOUND")
        coordinator, sockets = folder / "coordinator.sock", folder / "sockets"
        sockets.mkdir(mode=0o700)
        try:
            self._start("coordinator", [programs / "tessera-coordinator", "--listen",
                                        f"unix:{coordinator}", "--ephemeral"])
            self._ready(coordinator)
            self._start("worker", [
                programs / "tessera-worker", "--coordinator", f"unix:{coordinator}", "--worker-id",
                "local", "--devices", str(ranks), "--keep-memory", "0", "--socket-dir", sockets,
                "--executor-binary", programs / "tessera-executor",
                *([] if gpu is None else ["--gpu", str(gpu)])])
            self._ready(sockets / "worker.sock")
        except BaseException:
            self.stop()
            raise
        (folder / "ready").touch()

    def _start(self, name: str, command) -> None:
        with open(self.folder / f"{name}.log", "wb") as log:
            self.processes.append((name, self._starter.popen(
                [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, preexec_fn=_die_with_parent)))

    def _ready(self, path: pathlib.Path) -> None:
        deadline = time.monotonic() + _WAIT_SECONDS
        name, process = self.processes[-1]
        while not path.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise TesseraError(f"the {name} did not start; its log ends:\n{self._log(name)}",
                                   "UNAVAILABLE")
            time.sleep(0.01)

    def addresses(self) -> dict[str, str]:
        return addresses_in(self.folder)

    def check(self) -> None:
        """Errors: UNAVAILABLE  the coordinator or the worker has ended."""
        for name, process in self.processes:
            if process.poll() is not None:
                raise TesseraError(f"the {name} ended; its log ends:\n{self._log(name)}",
                                   "UNAVAILABLE")

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


# Runs after what later modules register: a model detaches before its cluster ends.
@atexit.register
def stop_own() -> None:
    """Ends the cluster that init() made, if it made one."""
    global _own, _context
    if _own is not None:
        _own.stop()
        _own, _context = None, None
