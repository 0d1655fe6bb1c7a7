"""Hosts on loopback that answer as a script says, and a network on which names and addresses are made up."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path

from dragoman.pictures.addresses import Address

PUBLIC = "93.184.216.34"
OTHER_PUBLIC = "2606:2800:220:1:248:1893:25c8:1946"
TLS_FILE = Path(__file__).parent / "tls" / "pictures.example.pem"

Answer = Callable[[socket.socket], None]


def sends(*pieces: bytes) -> Answer:
    """An answer of these bytes."""

    def answer(connection: socket.socket) -> None:
        for piece in pieces:
            connection.sendall(piece)

    return answer


def ok(body: bytes, *fields: str, length: int | None = None) -> Answer:
    """A usual answer. `length`: what Content-Length says, where it lies."""
    head = ["HTTP/1.1 200 OK", f"Content-Length: {len(body) if length is None else length}", *fields, "", ""]
    return sends("\r\n".join(head).encode() + body)


def redirect(location: str, status: int = 302) -> Answer:
    """An answer that sends elsewhere."""
    return sends(f"HTTP/1.1 {status} Elsewhere\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode())


class Host:
    """A server. `heads`: the requests that came, as text; `answers`: by path, else the one of ""."""

    def __init__(self, answers: Mapping[str, Answer], tls: ssl.SSLContext | None = None) -> None:
        self.heads: list[str] = []
        self.num_connections = 0
        self.released = threading.Event()
        self.answers = dict(answers)
        self._tls = tls
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = self._listening.accept()
                self.num_connections += 1
                self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            served = self._tls.wrap_socket(connection, server_side=True) if self._tls else connection
            with served:
                head = b""
                while b"\r\n\r\n" not in head:
                    piece = served.recv(4096)
                    if not piece:
                        return
                    head += piece
                self.heads.append(head.decode())
                path = self.heads[-1].split()[1]
                (self.answers.get(path) or self.answers[""])(served)

    def answer_only(self, first: bytes) -> None:
        """Send this, for every path, and then nothing until the end."""

        def answer(connection: socket.socket) -> None:
            connection.sendall(first)
            self.released.wait()

        self.answers[""] = answer

    def close(self) -> None:
        """Stop, with all connections at their end."""
        self.released.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join()


@contextmanager
def hosting(answers: Mapping[str, Answer] | Answer, tls: ssl.SSLContext | None = None) -> Iterator[Host]:
    """A running host; one answer is for all paths."""
    host = Host(answers if isinstance(answers, Mapping) else {"": answers}, tls)
    try:
        yield host
    finally:
        host.close()


def server_tls() -> ssl.SSLContext:
    """Speaks as pictures.example."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS_FILE)
    return context


def client_tls() -> ssl.SSLContext:
    """Trusts pictures.example, and checks names as ever."""
    return ssl.create_default_context(cafile=str(TLS_FILE))


class MadeUpNetwork:
    """Names with their addresses, one list for each time they are asked for, the last for all later times.

    `ports`: where an address really is on loopback. Every other connection fails, and is counted like all.
    """

    def __init__(self, names: Mapping[str, Sequence[Sequence[str]]], ports: Mapping[str, int] | None = None) -> None:
        self._names = {name: list(answers) for name, answers in names.items()}
        self._ports = dict(ports or {})
        self.resolved: list[str] = []
        self.connected: list[str] = []

    def resolve(self, host: str, port: int) -> list[Address]:
        """As `Network`."""
        self.resolved.append(host)
        if host not in self._names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        answers = self._names[host]
        return [ip_address(text) for text in (answers.pop(0) if len(answers) > 1 else answers[0])]

    def connect(self, address: Address, port: int, timeout_s: float) -> socket.socket:
        """As `Network`."""
        self.connected.append(str(address))
        if str(address) not in self._ports:
            raise ConnectionRefusedError(str(address))
        return socket.create_connection(("127.0.0.1", self._ports[str(address)]), timeout_s)
