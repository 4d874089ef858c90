"""Starts a coordinator, a worker and N trainers on this node, and ends them together.

    python -m tessera.run -n 4 train.py --its --arguments
    python -m tessera.run -n 4 -- ./my_trainer --its --arguments

A trainer that a signal killed is started again, and goes on with the step that was undone. One that
exits with an error ends the job. Lines of trainers begin with [rank]. Trainers see torchrun's
variables (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE) and TESSERA_COORDINATOR, TESSERA_WORKER,
TESSERA_JOB. Exit status: 0 if all trainers exited with 0; 1; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import pathlib
import signal
import subprocess
import socket
import sys
import tempfile
import threading

_STOP_SECONDS = 10.0


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class _Trainers:
    """The processes of the ranks. Each has a thread that waits for it and passes its lines on."""

    def __init__(self, command, ranks: int, addresses: dict, max_restarts: int):
        self._command, self._ranks, self._addresses = command, ranks, addresses
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._restarts_left = max_restarts
        self._lock = threading.Lock()
        self._output_lock = threading.Lock()
        self._processes: list[subprocess.Popen | None] = [None] * ranks
        self._left, self._ending = ranks, False
        self.failed: str | None = None
        self.ended = threading.Event()

    def start(self) -> None:
        for rank in range(self._ranks):
            threading.Thread(target=self._look_after, args=(rank,), daemon=True).start()

    def _start(self, rank: int) -> subprocess.Popen | None:
        environment = {
            **os.environ, **self._addresses, "RANK": str(rank), "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self._ranks), "LOCAL_WORLD_SIZE": str(self._ranks),
            # For torch.distributed, which the training code may use beside this.
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self._port),
            "PYTHONUNBUFFERED": "1"}
        with self._lock:
            if self._ending:
                return None
            # A thread's death does not count as the parent's: these threads live until the end.
            process = subprocess.Popen(  # pylint: disable=consider-using-with
                self._command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, preexec_fn=_die_with_parent, start_new_session=True)
            self._processes[rank] = process
            return process

    def _look_after(self, rank: int) -> None:
        try:
            while True:
                process = self._start(rank)
                if process is None:
                    return
                for line in process.stdout:
                    self._say(f"[{rank}] ".encode() + line)
                status = process.wait()
                if not self._is_to_be_replaced(rank, status):
                    return
        except OSError as error:
            self._fail(f"rank {rank} cannot be started: {error}")
        finally:
            with self._lock:
                self._left -= 1
                if self._left == 0:
                    self.ended.set()

    def _is_to_be_replaced(self, rank: int, status: int) -> bool:
        if status == 0 or self._ending:
            return False
        if status > 0:
            self._fail(f"rank {rank} exited with status {status}")
            return False
        name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
        with self._lock:
            self._restarts_left -= 1
            out_of_restarts = self._restarts_left < 0
        if out_of_restarts:
            self._fail(f"rank {rank} was killed by {name}, and --max-restarts is used up")
            return False
        self._say(f"tessera: rank {rank} was killed by {name}; it is started again\n".encode())
        return True

    def _say(self, line: bytes) -> None:
        with self._output_lock:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()

    def _fail(self, reason: str) -> None:
        with self._lock:
            if self.failed is None and not self._ending:
                self.failed = reason
        self.ended.set()

    def stop(self) -> None:
        with self._lock:
            self._ending = True
            alive = [p for p in self._processes if p is not None and p.poll() is None]
        for process in alive:
            process.terminate()
        for process in alive:
            try:
                process.wait(timeout=_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                pass
            # What it started, too: data loaders, say.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


def _parse(arguments):
    parser = argparse.ArgumentParser(prog="python -m tessera.run", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--nproc-per-node", type=int, required=True, help="number of ranks")
    parser.add_argument("--max-restarts", type=int, default=100,
                        help="of killed trainers, all together (default: 100)")
    parser.add_argument("--job", default="train", help="the job's name (default: train)")
    parser.add_argument("program", nargs=argparse.REMAINDER,
                        help="a Python script, or after -- any program; and its arguments")
    given = parser.parse_args(arguments)
    is_any_program = given.program[:1] == ["--"]
    command = given.program[1:] if is_any_program else given.program
    if not command:
        parser.error("which program?")
    if given.nproc_per_node < 1:
        parser.error("-n: at least 1 rank")
    if not is_any_program:
        if not pathlib.Path(command[0]).is_file():
            parser.error(f"{command[0]}: no such file; put -- before a program that is not a Python script")
        command = [sys.executable, *command]
    return given, command


def main(arguments=None) -> int:
    given, command = _parse(arguments)
    # SIGTERM, as Ctrl-C: everything is ended.
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    from . import _cluster
    with tempfile.TemporaryDirectory(prefix="tessera-run-") as folder:
        cluster = trainers = None
        try:
            cluster = _cluster.Cluster(pathlib.Path(folder), given.nproc_per_node)
            trainers = _Trainers(command, given.nproc_per_node,
                                 {**cluster.addresses(), "TESSERA_JOB": given.job},
                                 given.max_restarts)
            trainers.start()
            while not trainers.ended.wait(0.2):
                cluster.check()
            if trainers.failed is None:
                return 0
            print(f"tessera: {trainers.failed}; the job is ended", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("tessera: interrupted; the job is ended", file=sys.stderr)
            return 130
        except _cluster.TesseraError as error:
            print(f"tessera: {error}", file=sys.stderr)
            return 1
        finally:
            if trainers is not None:
                trainers.stop()
            if cluster is not None:
                cluster.stop()


if __name__ == "__main__":
    sys.exit(main())
