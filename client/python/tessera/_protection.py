"""How the processes of a job over several nodes know each other: by certificates, or not at all."""

from __future__ import annotations

import concurrent.futures
import hmac
import os
import pathlib
import socket
import ssl

from .errors import TesseraError

_HOW = "docs/guide/several-nodes.md says how to make it"


class Certificates:
    """TLS with the files of one folder.

        ca.pem                             the authority that signed both others
        coordinator.pem, coordinator.key   node 0 only: names the rendezvous host
        node.pem, node.key                 with the same common name on all nodes
    """

    def __init__(self, folder: str, insecure_data: bool):
        self._folder, self._insecure_data = pathlib.Path(folder).resolve(), insecure_data
        self._name = ""  # The common name of node.pem, on node 0.
        self._check("ca.pem", "node.pem", "node.key")

    def _check(self, *names) -> None:
        for name in names:
            if not (self._folder / name).is_file():
                raise TesseraError(f"--certs: {self._folder / name}: no such file; {_HOW}",
                                   "NOT_FOUND")

    def _files(self, name: str) -> tuple[str, str, str]:
        return tuple(str(self._folder / file) for file in (f"{name}.pem", f"{name}.key", "ca.pem"))

    def _flags(self, name: str) -> list[str]:
        return [part for flag, path in zip(("cert", "key", "ca"), self._files(name))
                for part in (f"--tls-{flag}", path)]

    def check_server(self, host: str) -> None:
        """On node 0, which serves at this host, before anything else of the kind is asked."""
        self._check("coordinator.pem", "coordinator.key")
        self._name = self._read_name(host)

    def coordinator_flags(self) -> list[str]:
        return [*self._flags("coordinator"), "--grant", f"worker=certificate:{self._name}"]

    def worker_flags(self) -> list[str]:
        return self._flags("node") + (["--insecure-data"] if self._insecure_data else [])

    def client_flags(self) -> list[str]:
        """Of the program tessera."""
        return self._flags("node")

    def environment(self) -> dict[str, str]:
        names = ("TESSERA_TLS_CERT", "TESSERA_TLS_KEY", "TESSERA_TLS_CA")
        return dict(zip(names, self._files("node")))

    def server_context(self) -> ssl.SSLContext:
        context = self._context(ssl.PROTOCOL_TLS_SERVER, "coordinator")
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client_context(self) -> ssl.SSLContext:
        return self._context(ssl.PROTOCOL_TLS_CLIENT, "node")

    def _context(self, protocol: int, name: str) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        certificate, key, authority = self._files(name)
        try:
            # A password, so that nobody is asked for one.
            context.load_cert_chain(certificate, key, password="")
            context.load_verify_locations(authority)
        except (OSError, ValueError) as error:
            raise TesseraError(f"--certs: {certificate}, {key} or {authority}: {error}",
                               "INVALID_ARGUMENT") from None
        return context

    def _read_name(self, host: str) -> str:
        """Of node.pem, from a connection within this process: that tries both certificates too."""
        ends = socket.socketpair()
        for end in ends:
            end.settimeout(10)
        server, client = self.server_context(), self.client_context()
        with concurrent.futures.ThreadPoolExecutor(1) as pool, ends[0], ends[1]:
            serving = pool.submit(server.wrap_socket, ends[0], server_side=True)
            try:
                with client.wrap_socket(ends[1], server_hostname=host), serving.result() as served:
                    return _common_name(served)
            except OSError as error:
                raise TesseraError(
                    f"--certs: coordinator.pem and node.pem in {self._folder} do not work together "
                    f"for the host {host}: {error}; {_HOW}", "INVALID_ARGUMENT") from None

    def has_proof(self) -> bool:
        return True

    def proof(self) -> str:
        return ""

    def refusal(self, proof: str, connection: ssl.SSLObject) -> str | None:
        """Why node 0 does not admit who connected; None: it does."""
        del proof
        name = _common_name(connection)
        if name == self._name:
            return None
        return (f"its node.pem has the common name '{name}', and node 0's has '{self._name}': use "
                "one name on all nodes")


class Insecure:
    """Nothing is encrypted. A launcher with the access token of node 0's user may join."""

    def check_server(self, host: str) -> None:
        pass

    def coordinator_flags(self) -> list[str]:
        return ["--insecure-listen"]

    def client_flags(self) -> list[str]:
        return ["--insecure-connect"]

    def worker_flags(self) -> list[str]:
        return ["--insecure-connect", "--insecure-data"]

    def environment(self) -> dict[str, str]:
        return {"TESSERA_INSECURE_CONNECT": "1"}

    def server_context(self) -> None:
        return None

    def client_context(self) -> None:
        return None

    def has_proof(self) -> bool:
        return _token_path().exists()  # The coordinator makes it.

    def proof(self) -> str:
        try:
            return _token_path().read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return ""

    def refusal(self, proof: str, connection: None) -> str | None:
        """As Certificates.refusal."""
        del connection
        if proof and hmac.compare_digest(proof.encode(), self.proof().encode()):
            return None
        return (f"its access token is not that of node 0: copy node 0's {_token_path()} there "
                "(~/.config/tessera/token, or where TESSERA_TOKEN_FILE says), or use --certs")


def _token_path() -> pathlib.Path:
    given = os.environ.get("TESSERA_TOKEN_FILE")
    return pathlib.Path(given) if given else pathlib.Path.home() / ".config/tessera/token"


def _common_name(connection) -> str:
    subject = connection.getpeercert()["subject"]
    return next((value for part in subject for key, value in part if key == "commonName"), "")
