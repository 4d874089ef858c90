"""Where the job's coordinator and worker are: given, the launcher's, or a cluster made here."""

from __future__ import annotations

import atexit
import dataclasses
import hashlib
import os
import pathlib
import shutil
import tempfile
import time

from ._daemons import Daemons
from .errors import TesseraError

_ANY_RANK = -1
_WAIT_FOR_RANK_0_SECONDS = 600.0  # It may have more to do before it attaches.


@dataclasses.dataclass
class Context:
    """What this process is in its job."""

    coordinator: str | None  # None, as the worker: a cluster of its own, which attaching makes.
    worker: str | None
    job: str
    rank: int  # As the C interface has it.
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

    def collective_timeout(self, of_one_model: bool) -> dict:
        """For the job's config: how long ranks wait for each other at most, in this job.

        Longer than this process waits, so that its error comes first: it names who is missing, and
        no step is undone for a rank that does something alone. Where several models' jobs may wait
        for each other, the end of such a wait is the way out (docs/adr/0093): sooner, unless asked.
        """
        seconds = self.timeouts.get("operation") or (_OPERATION_SECONDS if of_one_model else 0)
        if not seconds > 0:  # If it is given, the library says what is wrong with it.
            return {}
        return {"collective_timeout_ms": round(min(seconds + 60, _LONGEST_SECONDS) * 1000)}

    def leave(self) -> None:
        pass


_OPERATION_SECONDS = 600.0  # As SessionOptions::operation_timeout.
_LONGEST_SECONDS = 7 * 86400.0  # That a job's config takes.
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


def is_own() -> bool:
    """Whether the job's coordinator and worker are this process's."""
    return _own is not None


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
         rank: int | str | None = None, world_size: int | None = None,
         tls: tuple[str, str, str] | None = None, insecure: bool = False,
         gpu: int | None = None, timeouts: dict[str, float] | None = None) -> Context:
    """Finds the job's coordinator and worker. Arguments come before the environment.

    TESSERA_COORDINATOR, TESSERA_WORKER, TESSERA_JOB and RANK, WORLD_SIZE, LOCAL_RANK are what
    `tessera run` sets; over several nodes also TESSERA_TLS_CERT, TESSERA_TLS_KEY, TESSERA_TLS_CA or
    TESSERA_INSECURE_CONNECT=1. With torchrun's variables alone the ranks of one node make a
    cluster of their own; with none of them this process is a job of one rank.
    rank: "any" is one of the worker's ranks that has no trainer. `model.tessera.rank` says which, once
      `model.tessera.attach()` has returned.
    tls: paths of certificate, key and CA, as PEM.
    timeouts: seconds, by "attach" (to the worker; 60), "operation" (of each wait for other ranks;
      600: more where one rank does something longer alone) and "recover" (after a death; 120).
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
    local_rank = _number("LOCAL_RANK")
    coordinator = coordinator or os.environ.get("TESSERA_COORDINATOR")
    worker = worker or os.environ.get("TESSERA_WORKER")
    if rank == "any":
        rank = _ANY_RANK
        if worker is None:
            raise TesseraError("rank='any' is one of a worker's: say which worker (worker=, or "
                               "TESSERA_WORKER)", "INVALID_ARGUMENT")
    elif isinstance(rank, str) or not 0 <= rank < world_size:
        raise TesseraError(f"rank {rank!r} of {world_size}: not in [0, {world_size}), nor 'any'",
                           "INVALID_ARGUMENT")
    if (coordinator is None) != (worker is None):
        raise TesseraError("the addresses of both coordinator and worker are needed, or of neither",
                           "INVALID_ARGUMENT")
    tls, insecure = protection(tls, insecure)
    _check_one_node(coordinator, world_size)
    unknown = set(timeouts or {}) - {"attach", "operation", "recover"}
    if unknown:
        raise TesseraError(f"timeouts: {', '.join(sorted(unknown))} is none of attach, operation, "
                           "recover", "INVALID_ARGUMENT")
    _context = Context(coordinator, worker, job or os.environ.get("TESSERA_JOB") or "train", rank,
                       world_size, rank if local_rank is None else local_rank, tls, insecure, gpu,
                       dict(timeouts or {}))
    return _context


def protection(tls: tuple[str, str, str] | None,
               insecure: bool) -> tuple[tuple[str, str, str] | None, bool]:
    """What was given, or else what the environment says."""
    if tls or insecure:
        return tls, insecure
    names = ("TESSERA_TLS_CERT", "TESSERA_TLS_KEY", "TESSERA_TLS_CA")
    paths = tuple(os.environ.get(name, "") for name in names)
    return paths if any(paths) else None, os.environ.get("TESSERA_INSECURE_CONNECT") == "1"


def _check_one_node(coordinator: str | None, world_size: int) -> None:
    local_size = _number("LOCAL_WORLD_SIZE")
    if coordinator is None and local_size is not None and local_size != world_size:
        raise TesseraError(
            f"this node has {local_size} of {world_size} ranks: a job over several nodes needs a "
            "coordinator and workers: `tessera run --nnodes` starts them; or start them and set "
            "TESSERA_COORDINATOR and TESSERA_WORKER",
            "FAILED_PRECONDITION")


def _make_cluster(rank: int, world_size: int, gpu: int | None) -> tuple[str, str]:
    global _own
    if gpu is not None and world_size > 1:
        raise TesseraError(
            f"{world_size} ranks on GPUs need a coordinator, and a worker for each GPU: start them "
            "and set TESSERA_COORDINATOR and TESSERA_WORKER", "FAILED_PRECONDITION")
    if world_size == 1:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera-", dir=temporary_folder()))
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


def temporary_folder() -> str:
    """Where sockets can be: their paths have at most 107 bytes."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= 50 else "/tmp"


def _shared_folder() -> pathlib.Path:
    """One for the ranks that one torchrun started."""
    parts = [os.environ.get(name, "") for name in
             ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")]
    name = hashlib.sha256("|".join(parts + [str(os.getppid())]).encode()).hexdigest()[:16]
    return pathlib.Path(temporary_folder()) / f"tessera-{os.getuid()}-{name}"


def _await(path: pathlib.Path, what: str) -> None:
    deadline = time.monotonic() + _WAIT_FOR_RANK_0_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise TesseraError(f"waited {_WAIT_FOR_RANK_0_SECONDS:.0f} s for {what} ({path})",
                               "DEADLINE_EXCEEDED")
        time.sleep(0.02)


class Cluster(Daemons):
    """A coordinator and a worker for the ranks of this node alone."""

    def __init__(self, folder: pathlib.Path, ranks: int, gpu: int | None = None):
        super().__init__(folder)
        coordinator = folder / "coordinator.sock"
        try:
            self.start_coordinator(coordinator, "--listen", f"unix:{coordinator}")
            self.start_worker(f"unix:{coordinator}", "local", ranks,
                              *([] if gpu is None else ["--gpu", gpu]))
        except BaseException:
            self.stop()
            raise
        (folder / "ready").touch()

    def addresses(self) -> dict[str, str]:
        return addresses_in(self.folder)


def leave_to_parent() -> None:
    """In a forked child: the cluster is not its own."""
    global _own
    _own = None


# Runs after what later modules register: a model detaches before its cluster ends.
@atexit.register
def stop_own() -> None:
    """Ends the cluster that init() made, if it made one."""
    global _own, _context
    if _own is not None:
        _own.stop()
        _own, _context = None, None
