"""A launcher among those of the job's other nodes. What they say to each other: _hub.py."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import threading
import time

from ._hub import (GOODBYE_SECONDS, Hub, JobEnded, keep_alive, receive, say, send, status_of,
                   tls_options)
from .errors import LOST, TesseraError

_RETRY_SECONDS = 0.2
_PROOF_SECONDS = 10.0
_MAX_REASON = 4000


class Member:
    """A node's connection to node 0. Lives in one event loop, but for `ended` and `reason`."""

    def __init__(self, node: int, where: tuple[str, int], protection):
        self._node, self._where, self._protection = node, where, protection
        self._hub = f"node 0 at {where[0]}:{where[1]}"
        self._reader = self._writer = None
        self.ended = threading.Event()
        self.reason, self.status = "", LOST

    async def join(self, plan: dict, seconds: float) -> tuple[int, str]:
        """Waits for all nodes. The port for torch.distributed, and this node's address.

        Errors: UNAVAILABLE, JobEnded  names which node, and why
        """
        self._reader, self._writer = await self._connect(seconds)
        keep_alive(self._writer)
        try:
            if (await receive(self._reader)).get("tessera") != "run":
                raise ValueError("it is not `tessera run`, or was started with --certs and this "
                                 "one was not")
            send(self._writer, join={"node": self._node, "plan": plan,
                                      "proof": await self._proof()})
            answer = await receive(self._reader)
        except (OSError, ValueError) as error:
            raise TesseraError(f"{self._hub} did not let this node join: {error}",
                               "UNAVAILABLE") from None
        if "begin" not in answer:
            raise JobEnded(answer.get("end") or f"{self._hub} has ended",
                           status_of(answer, LOST))
        self._listening = asyncio.ensure_future(self._listen())
        return answer["begin"]["master_port"], self._writer.get_extra_info("sockname")[0]

    async def _proof(self) -> str:
        """A network file system may show the file that node 0 made a little later."""
        deadline = time.monotonic() + _PROOF_SECONDS
        while not self._protection.has_proof() and time.monotonic() < deadline:
            await asyncio.sleep(_RETRY_SECONDS)
        return self._protection.proof()

    async def _connect(self, seconds: float):
        context = self._protection.client_context()
        deadline, said = time.monotonic() + seconds, None
        while True:
            left = deadline - time.monotonic()
            try:
                return await asyncio.wait_for(
                    asyncio.open_connection(*self._where, **tls_options(context)), max(left, 1.0))
            except ssl.SSLError as error:
                is_certificate = isinstance(error, ssl.SSLCertVerificationError)
                raise TesseraError(
                    f"{self._hub}: TLS failed: {error}" +
                    ("" if is_certificate else "; was it started with --certs too?"),
                    "UNAVAILABLE") from None
            except (OSError, asyncio.TimeoutError) as error:
                why = str(error) or "no answer"
            if left <= 0:
                raise JobEnded(f"{self._hub} did not answer within {seconds:.0f} s: {why}", LOST)
            if why != said:
                say(f"node {self._node} waits for {self._hub}, up to {left:.0f} s: {why}")
                said = why
            await asyncio.sleep(_RETRY_SECONDS)

    async def _listen(self) -> None:
        gone = f"{self._hub} is gone: its launcher was killed, or the network does not reach it"
        try:
            answer = await receive(self._reader)
            self.reason, self.status = answer.get("end", gone), status_of(answer, LOST)
        except (OSError, ValueError):
            self.reason = gone
        self.ended.set()

    def tell(self, **message) -> None:
        if self._writer is not None:
            send(self._writer, **message)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _resolve(host: str, port: int, seconds: float) -> tuple:
    """A name may get its address a little after the node starts: that of a pod, say."""
    deadline, said = time.monotonic() + seconds, False
    while True:
        try:
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        except socket.gaierror as error:
            if time.monotonic() > deadline:
                raise
            if not said:
                say(f"node 0 waits for an address of {host}, up to {seconds:.0f} s: "
                    f"{error.strerror}")
                said = True
            time.sleep(_RETRY_SECONDS)


def listen(host: str, port: int, seconds: float = 0.0) -> socket.socket:
    """Of node 0; waits so long for the host to have an address.

    Errors: UNAVAILABLE  names the address and what to do.
    """
    try:
        found = _resolve(host, port, seconds)
        return socket.create_server(found[4][:2], family=found[0], backlog=1024)
    except OSError as error:
        what = {errno.EADDRINUSE: "another launcher is node 0 already, or give another port",
                errno.EADDRNOTAVAIL: "node 0 must be the node that has this address",
                }.get(error.errno, "--rendezvous is an address of node 0")
        why = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno)
        raise TesseraError(f"cannot listen on {host}:{port}: {why}: {what}",
                           "UNAVAILABLE") from None


class Nodes:
    """This launcher among those of the job, for a thread that waits: not in an event loop."""

    def __init__(self, node: int, where: tuple[str, int], protection):
        self._protection = protection
        self._member, self._hub = Member(node, where, protection), None
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True, name="tessera-nodes").start()

    def _run(self, task):
        return asyncio.run_coroutine_threadsafe(task, self._loop).result()

    def serve(self, listener: socket.socket, plan: dict, seconds: float,
              replace_seconds: float) -> None:
        """On node 0, before it joins."""
        hub = Hub(plan, self._protection, seconds, replace_seconds)
        self._run(hub.serve(listener))
        self._hub = hub

    def join(self, plan: dict, seconds: float) -> tuple[int, str]:
        """As Member.join."""
        return self._run(self._member.join(plan, seconds))

    def check(self) -> None:
        """Errors: JobEnded  on another node, with its reason"""
        if self._member.ended.is_set() and self._member.reason:
            raise JobEnded(self._member.reason, self._member.status)

    def finish(self) -> None:
        """Waits until all nodes are done. Errors: as check"""
        self._loop.call_soon_threadsafe(lambda: self._member.tell(done=True))
        self._member.ended.wait()
        self.check()

    def fail(self, reason: str, status: int) -> str:
        """Ends the job on all nodes. Why it ended: another node's reason may have been first."""
        reason = reason[-_MAX_REASON:]
        self._loop.call_soon_threadsafe(lambda: self._member.tell(failed=reason, status=status))
        self._member.ended.wait(GOODBYE_SECONDS)
        return self._member.reason or reason

    def leave(self, reason: str) -> str:
        """This node is gone, which the job survives where another may take its place.

        Why the job ended, or what node 0 does about it.
        """
        self._loop.call_soon_threadsafe(lambda: self._member.tell(leaves=reason))
        self._member.ended.wait(GOODBYE_SECONDS)
        return self._member.reason or reason

    def close(self) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _close(self) -> None:
        self._member.close()
        if self._hub is not None:
            await self._hub.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
