"""Starts a coordinator, workers and the ranks' trainers, and ends them together.

on one node:
    tessera run -n 4 train.py --its --arguments
    tessera run -n 4 -- ./my_trainer --its --arguments

on several, once on each; HOST is node 0, which uses PORT and PORT + 1:
    tessera run --nnodes 8 --node-rank $I --rendezvous HOST:PORT --insecure -n 4 train.py
    srun --ntasks-per-node=1 tessera run --insecure -n 4 train.py

A trainer that a signal killed is started again, and goes on with the step that was undone; so is one
that exits with status 75, as Python programs do that could not go on where a process of another rank
died. One that exits with another error ends the job, on all nodes. So does a node that is gone.
Lines of trainers begin with [rank]. Trainers see torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK,
LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT) and TESSERA_COORDINATOR, TESSERA_WORKER,
TESSERA_JOB, over several nodes also TESSERA_TLS_CERT, TESSERA_TLS_KEY, TESSERA_TLS_CA or
TESSERA_INSECURE_CONNECT; and OMP_NUM_THREADS, unless it is set: the node's cores / ranks, at least 1.
Exit status, the same on all nodes: 0 if all trainers exited with 0; that of the first trainer that
exited with an error (128 + N: killed by signal N too often); 75 if a node, a launcher or a daemon is
gone or did not come, or trainers exited with 75 too often, so that another try may help; 1 for other
errors, 2 for wrong arguments; 130 after Ctrl-C, or SIGTERM here.
"""

from __future__ import annotations

import argparse
import pathlib
import signal
import socket
import sys
import tempfile

from . import _cores, _slurm
from ._cluster import Cluster, temporary_folder
from ._coordinator import delete_jobs
from ._daemons import Daemons, launchers_worker
from ._hub import JobEnded, say
from ._nodes import Nodes, listen
from ._protection import Certificates, Insecure
from ._trainers import Trainers
from .errors import TesseraError

_INTERRUPTED = 130  # As shells have it.


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tessera run", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--nproc-per-node", type=int, required=True,
                        help="number of ranks of this node; the same on all")
    parser.add_argument("--max-restarts", type=int, default=100,
                        help="of trainers of this node, all together (default: 100)")
    parser.add_argument("-m", "--module", action="store_true",
                        help="the program is a Python module, as for python -m")
    parser.add_argument("--job", default="train", help="the job's name (default: train)")
    nodes = parser.add_argument_group("several nodes")
    nodes.add_argument("--nnodes", type=int, help="number of nodes (default: srun's, or 1)")
    nodes.add_argument("--node-rank", type=int, metavar="I",
                       help="this node's, from 0 (default: srun's)")
    nodes.add_argument("--rendezvous", metavar="HOST:PORT",
                       help="address of node 0 where the coordinator listens, and where all nodes "
                       "reach it (default: srun's first node, with a port made from the job's id)")
    nodes.add_argument("--coordinator", metavar="HOST:PORT",
                       help="one that serves this job alone, also after the launchers have ended "
                       "(default: node 0 starts one at the rendezvous)")
    nodes.add_argument("--certs", metavar="DIR",
                       help="TLS with ca.pem, node.pem and node.key in DIR, on node 0 also "
                       "coordinator.pem and coordinator.key: docs/guide/several-nodes.md")
    nodes.add_argument("--insecure-data", action="store_true",
                       help="with --certs: permit that ranks send each other data unencrypted")
    nodes.add_argument("--insecure", action="store_true",
                       help="no TLS: for a network where every machine is trusted")
    nodes.add_argument("--data-host", metavar="IP",
                       help="this node's address for ranks of other nodes (default: the one from "
                       "which it reaches node 0)")
    nodes.add_argument("--join-timeout", type=float, default=600.0, metavar="SECONDS",
                       help="how long nodes wait for each other (default: 600)")
    nodes.add_argument("--replace-timeout", type=float, default=0.0, metavar="SECONDS",
                       help="of node 0: how long the job waits for a new launcher of a node that "
                       "is gone (default: 0, the job ends). Other nodes must have its shards: "
                       "HYBRID_SHARD with shard_group_size as -n")
    nodes.add_argument("--worker-flag", action="append", default=[], metavar="FLAG",
                       help="one more flag of this node's tessera-worker, as "
                       "--worker-flag=--gpu=0; may be repeated")
    parser.add_argument("program", nargs=argparse.REMAINDER,
                        help="a Python script, with -m a module, or after -- any program; and its "
                        "arguments")
    return parser


def _parse(arguments) -> argparse.Namespace:
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.program in ([], ["--"]):
        parser.error("which program?")
    if given.nproc_per_node < 1:
        parser.error("-n: at least 1 rank")
    slurm = _slurm.place() if given.nnodes is None else None
    if slurm is not None:
        given.nnodes, given.node_rank = slurm.nnodes, slurm.node_rank
        given.rendezvous = given.rendezvous or slurm.rendezvous
    given.nnodes = 1 if given.nnodes is None else given.nnodes
    if given.nnodes < 1:
        parser.error("--nnodes: at least 1 node")
    if given.nnodes > 1 or given.coordinator is not None:
        _check_nodes(parser, given)
    elif given.worker_flag:
        parser.error("--worker-flag is for several nodes, or with --coordinator")
    else:
        given.node_rank = 0
    return given


def _check_nodes(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    if given.node_rank is None or given.rendezvous is None:
        parser.error(f"--nnodes {given.nnodes} needs --node-rank I, from 0 to {given.nnodes - 1}, "
                     "and --rendezvous HOST:PORT, an address of node 0")
    if not 0 <= given.node_rank < given.nnodes:
        parser.error(f"--node-rank {given.node_rank}: of {given.nnodes} nodes it is from 0 to "
                     f"{given.nnodes - 1}")
    for option, address in (("--rendezvous", given.rendezvous),
                            ("--coordinator", given.coordinator or "host:1")):
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65535:
            parser.error(f"{option} {address}: not HOST:PORT with a port from 1 to 65534")
    if given.insecure == (given.certs is not None):
        parser.error("several nodes need one of --certs DIR (TLS; docs/guide/several-nodes.md) and "
                     "--insecure (for a network where every machine is trusted)")
    if given.certs is not None and not given.insecure_data:
        parser.error("--certs: TLS is for the coordinator's connections. What ranks of different "
                     "nodes send each other is not encrypted: add --insecure-data to permit that")


def _command(given: argparse.Namespace) -> list[str]:
    if given.module:
        return [sys.executable, "-m", *(p for i, p in enumerate(given.program) if i or p != "--")]
    if given.program[0] == "--":
        return given.program[1:]
    if not pathlib.Path(given.program[0]).is_file():
        raise TesseraError(f"{given.program[0]}: no such file on {socket.gethostname()}; put -- "
                           "before a program that is not a Python script", "NOT_FOUND")
    return [sys.executable, *given.program]


def _environments(given: argparse.Namespace, common: dict[str, str]) -> dict[int, dict[str, str]]:
    """Of this node's trainers, by rank."""
    local = given.nproc_per_node
    first = given.node_rank * local
    common = {**_cores.environment(local), **common}
    return {first + index: {
        **common, "TESSERA_JOB": given.job, "RANK": str(first + index), "LOCAL_RANK": str(index),
        "WORLD_SIZE": str(given.nnodes * local), "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": str(given.node_rank)} for index in range(local)}


class Terminated(KeyboardInterrupt):
    """By SIGTERM: this node is to be given up, which others may survive. Ctrl-C ends the job."""


class _OneNode:
    """A job that needs nothing of other machines."""

    def __init__(self, given: argparse.Namespace, folder: pathlib.Path):
        self._given, self._folder, self._cluster = given, folder, None

    def join(self) -> None:
        pass

    def start(self) -> dict[str, str]:
        """What trainers find in their environment."""
        self._cluster = Cluster(self._folder, self._given.nproc_per_node)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        say(f"watch job '{self._given.job}' by `tessera status --coordinator "
            f"{self._cluster.addresses()['TESSERA_COORDINATOR']}`")
        # For torch.distributed, which the training code may use as well.
        return {**self._cluster.addresses(), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}

    def check(self) -> None:
        self._cluster.check()

    def finish(self) -> None:
        pass

    def fail(self, reason: str, status: int) -> str:
        del status
        return reason

    def leave(self, reason: str) -> str:
        return reason

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.stop()


class _OneOfSeveral:
    """One of the nodes of a job. Node 0 has the coordinator."""

    def __init__(self, given: argparse.Namespace, folder: pathlib.Path):
        self._given, self._folder = given, folder
        host, _, port = given.rendezvous.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._protection = (Insecure() if given.insecure else
                            Certificates(given.certs, given.insecure_data))
        self._daemons = Daemons(folder)
        self._coordinator = given.coordinator or given.rendezvous
        self._nodes = Nodes(given.node_rank, (self._host, self._port + 1), self._protection)
        self._joined = None

    def join(self) -> None:
        """Waits for all nodes, which come in any order."""
        plan = {"--nnodes": self._given.nnodes, "-n": self._given.nproc_per_node,
                "--job": self._given.job}
        if self._given.node_rank == 0:
            self._lead(plan)
        self._joined = self._nodes.join(plan, self._given.join_timeout)

    def _lead(self, plan: dict) -> None:
        listener = listen(self._host, self._port + 1, self._given.join_timeout)
        found = listener.getsockname()[0]
        if found.startswith("127.") and found != self._host and self._host != "localhost":
            raise TesseraError(
                f"--rendezvous: {self._host} is {found} on this node, which other nodes do not "
                "reach: give an address of this node's network, or correct /etc/hosts",
                "INVALID_ARGUMENT")
        self._protection.check_server(self._host)
        if self._given.coordinator is None:
            self._start_coordinator()
        else:
            # Its shards ended with the workers of those launchers.
            delete_jobs(self._coordinator, self._given.job, self._protection.client_flags(),
                       self._given.join_timeout)
        say(f"node 0 waits for {self._given.nnodes - 1} more at {self._given.rendezvous}, up to "
            f"{self._given.join_timeout:.0f} s")
        self._nodes.serve(listener, plan, self._given.join_timeout, self._given.replace_timeout)

    def _start_coordinator(self) -> None:
        listen(self._host, self._port).close()  # Says better than the coordinator what is wrong.
        ready = self._folder / "port"
        self._daemons.start_coordinator(ready, "--listen", self._given.rendezvous, "--port-file",
                                        ready, *self._protection.coordinator_flags())

    def start(self) -> dict[str, str]:
        master_port, address = self._joined
        self._daemons.start_worker(
            self._coordinator, launchers_worker(self._given.node_rank), self._given.nproc_per_node,
            "--data-host", self._given.data_host or address, *self._protection.worker_flags(),
            *self._given.worker_flag)
        return {**self._protection.environment(), "TESSERA_COORDINATOR": self._coordinator,
                "TESSERA_WORKER": self._daemons.worker_address, "MASTER_ADDR": self._host,
                "MASTER_PORT": str(master_port)}

    def check(self) -> None:
        self._nodes.check()
        self._daemons.check()

    def finish(self) -> None:
        self._nodes.finish()

    def fail(self, reason: str, status: int) -> str:
        return self._nodes.fail(reason, status) if self._joined else reason

    def leave(self, reason: str) -> str:
        return self._nodes.leave(reason) if self._joined else reason

    def stop(self) -> None:
        self._nodes.close()
        self._daemons.stop()


def _run(given: argparse.Namespace, node) -> int:
    trainers = None
    try:
        node.join()
        command = _command(given)
        trainers = Trainers(command, _environments(given, node.start()), given.max_restarts)
        trainers.start()
        while not trainers.ended.wait(0.2):
            node.check()
            trainers.tell_who_goes_on()
        if trainers.failed is not None:
            raise trainers.failed
        node.finish()
        return 0
    except Terminated:
        say(f"{node.leave('terminated by SIGTERM')}; the job is ended on this node")
        return _INTERRUPTED
    except KeyboardInterrupt:
        say(f"{node.fail('interrupted', _INTERRUPTED)}; the job is ended")
        return _INTERRUPTED
    except TesseraError as error:
        status = error.status if isinstance(error, JobEnded) else 1
        say(f"{node.fail(str(error), status)}; the job is ended")
        return status
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        if trainers is not None:
            trainers.stop()
        node.stop()


def _terminate(*_) -> None:
    raise Terminated


def main(arguments=None) -> int:
    signal.signal(signal.SIGTERM, _terminate)
    try:
        given = _parse(arguments)
        with tempfile.TemporaryDirectory(prefix="tessera-run-", dir=temporary_folder()) as folder:
            kind = _OneNode if given.nnodes == 1 and given.coordinator is None else _OneOfSeveral
            return _run(given, kind(given, pathlib.Path(folder)))
    except TesseraError as error:
        say(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
