"""The launchers of a job's nodes: they find each other, begin together and end together.

    each launcher, node 0's too, connects to node 0 at the port after the rendezvous
      <- {"tessera": "run"}                   the coordinator listens
      -> {"join": {"node": 1, "plan": {...}, "proof": ""}}
      <- {"begin": {"master_port": 12345}}    all nodes have joined
      -> {"done": true}                       all trainers of this node have ended well
      -> {"failed": "reason"}
      -> {"leaves": "reason"}                 this node alone is given up
      <- {"end": "reason"}                    "": all nodes are done

Lines of JSON. The coordinator does not know how many nodes there are to be, what trainers exit with
or when all have ended. A connection that ends, or does not answer for ten seconds, is a node that
is gone.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import sys

from .errors import LOST, TesseraError

_HELLO_SECONDS = 30.0
GOODBYE_SECONDS = 5.0


class JobEnded(TesseraError):
    """The job has ended with this status for all launchers."""

    def __init__(self, reason: str, status: int):
        super().__init__(reason, "ABORTED")
        self.status = status


def say(text: str) -> None:
    print(f"tessera: {text}", file=sys.stderr, flush=True)


def send(writer: asyncio.StreamWriter, **message) -> None:
    writer.write(json.dumps(message).encode() + b"\n")


async def receive(reader: asyncio.StreamReader) -> dict:
    """Empty at the end. Errors: OSError; ValueError  it is not a message."""
    line = await reader.readline()
    try:
        message = json.loads(line or "{}")
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise ValueError("what answers is not `tessera run`")
    return message


def status_of(message: dict, otherwise: int) -> int:
    """Of the end that a message tells; `otherwise` where it has no exit status."""
    status = message.get("status")
    return status if isinstance(status, int) and 0 <= status < 256 else otherwise


def tls_options(context: ssl.SSLContext | None) -> dict:
    return {"ssl": context, **({} if context is None else {"ssl_handshake_timeout": 10.0})}


def keep_alive(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 4), (socket.TCP_KEEPINTVL, 2),
                          (socket.TCP_KEEPCNT, 3), (socket.TCP_USER_TIMEOUT, 10_000)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _names(nodes) -> str:
    nodes = sorted(nodes)
    shown = ", ".join(map(str, nodes[:20])) + (", ..." if len(nodes) > 20 else "")
    return f"node {shown}" if len(nodes) == 1 else f"nodes {shown}"


class Hub:
    """On node 0: which nodes have joined, and how the job ends. Lives in one event loop."""

    def __init__(self, plan: dict, protection, seconds: float, replace_seconds: float):
        """plan: what all nodes must have been given alike, by option.

        replace_seconds: how long a node that is gone may take to come again.
        """
        self._plan, self._protection = plan, protection
        self._seconds, self._replace_seconds = seconds, replace_seconds
        self._members: dict[int, asyncio.StreamWriter] = {}
        self._done: set[int] = set()
        self._begin: dict | None = None  # What was said when all had joined.
        self._ending: dict | None = None  # What is said at the end: its reason and its status.

    async def serve(self, listener: socket.socket) -> None:
        self._empty = asyncio.Event()
        self._listener = await asyncio.start_server(
            self._meet, sock=listener, **tls_options(self._protection.server_context()))
        asyncio.get_running_loop().call_later(self._seconds, self._expire)

    async def close(self) -> None:
        """Waits until the others have read how it ended."""
        self._end("node 0 has ended", LOST)
        self._listener.close()
        try:
            await asyncio.wait_for(self._empty.wait(), GOODBYE_SECONDS)
        except asyncio.TimeoutError:
            pass

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        node = None
        try:
            keep_alive(writer)
            send(writer, tessera="run")
            hello = await asyncio.wait_for(receive(reader), _HELLO_SECONDS)
            node = self._admit(hello["join"], writer)
            while node is not None:
                message = await receive(reader)
                if not message:
                    break
                self._take(node, message)
        except (OSError, ValueError, KeyError, TypeError, asyncio.TimeoutError):
            pass
        finally:
            if node is not None:
                self._leave(node, writer)
            writer.close()

    def _admit(self, join: dict, writer: asyncio.StreamWriter) -> int | None:
        node, where = int(join["node"]), writer.get_extra_info("peername")[0]
        refusal = self._protection.refusal(str(join["proof"]), writer.get_extra_info("ssl_object"))
        is_known = refusal is None
        if is_known:
            refusal = self._disagreement(node, dict(join["plan"]))
        if refusal is not None:
            refusal = f"node {node} ({where}) cannot join: {refusal}"
            say(refusal)
            send(writer, end=refusal, status=1)
            # All were to have the same, so the job cannot begin. A second launcher of a node that
            # is there disturbs nothing.
            if is_known and self._begin is None and node not in self._members:
                self._end(refusal, 1)
            return None
        self._members[node] = writer
        if self._ending is not None:
            send(writer, **self._ending)
        elif self._begin is not None:
            say(f"node {node} ({where}) takes its place again")
            send(writer, begin=self._begin)
        elif len(self._members) == self._plan["--nnodes"]:
            self._begin = {"master_port": self._free_port()}
            for each in self._members.values():
                send(each, begin=self._begin)
        return node

    def _disagreement(self, node: int, plan: dict) -> str | None:
        for option, value in self._plan.items():
            if plan.get(option) != value:
                return (f"it has {option} {plan.get(option)}, and node 0 has {option} {value}: "
                        "give all nodes the same")
        if not 0 <= node < self._plan["--nnodes"]:
            return "there is no node of this rank"
        if node in self._members:
            where = self._members[node].get_extra_info("peername")[0]
            return (f"{where} has joined as node {node} already: give each node a --node-rank of "
                    "its own")
        return None

    def _free_port(self) -> int:
        own = self._members[0]
        with socket.socket(own.get_extra_info("socket").family) as probe:
            probe.bind((own.get_extra_info("sockname")[0], 0))
            return probe.getsockname()[1]

    def _take(self, node: int, message: dict) -> None:
        if "failed" in message:
            self._end(f"node {node}: {message['failed']}", status_of(message, 1) or 1)
        elif "leaves" in message:
            reason = f"node {node}: {message['leaves']}"
            if self._can_be_replaced(node):
                say(reason)
                send(self._members[node], end=reason, status=LOST)
            else:
                self._end(reason, LOST)
        elif message.get("done"):
            self._done.add(node)
            if len(self._done) == self._plan["--nnodes"]:
                self._end("", 0)

    def _leave(self, node: int, writer: asyncio.StreamWriter) -> None:
        del self._members[node]
        self._done.discard(node)
        if self._ending is not None:
            if not self._members:
                self._empty.set()
        elif self._begin is not None:
            where = writer.get_extra_info("peername")[0]
            gone = (f"node {node} ({where}) is gone: its launcher was killed, or the network does "
                    "not reach it")
            if not self._can_be_replaced(node):
                self._end(gone, LOST)
                return
            say(f"{gone}; the job waits {self._replace_seconds:.0f} s for another launcher with "
                f"--node-rank {node}")
            asyncio.get_running_loop().call_later(self._replace_seconds, self._give_up, node, gone)

    def _can_be_replaced(self, node: int) -> bool:
        return self._begin is not None and self._replace_seconds > 0 and node != 0

    def _give_up(self, node: int, gone: str) -> None:
        if node not in self._members:
            self._end(f"{gone}; none took its place within {self._replace_seconds:.0f} s",
                      LOST)

    def _expire(self) -> None:
        missing = set(range(self._plan["--nnodes"])) - set(self._members)
        if missing and self._begin is None:
            self._end(f"{_names(missing)} of {self._plan['--nnodes']} did not join within "
                      f"{self._seconds:.0f} s: start `tessera run` there with this --rendezvous, "
                      "or give --join-timeout more", LOST)

    def _end(self, reason: str, status: int) -> None:
        if self._ending is not None:
            return
        self._ending = {"end": reason, "status": status}
        for writer in self._members.values():
            send(writer, **self._ending)
        if not self._members:
            self._empty.set()
