"""HTTPS on the loopback interface, with certificates that are made here."""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from dragoman.server.run import ListenConfig
from dragoman.server.security.tls import Tls, TlsError, TlsFiles, make_context
from tests.support.fake_service import Gate, Script
from tests.support.patience import PATIENCE_S
from tests.support.running_server import RunningServer

pytestmark = pytest.mark.varies("each Python brings its own ssl")


class Files:
    """The operator's files: a certificate of one authority, its key, and whose certificates clients need."""

    def __init__(self, directory: Path) -> None:
        self.certificate, self.key, self.client_ca = (directory / name for name in ("cert.pem", "key.pem", "ca.pem"))

    def write(self, authority: trustme.CA) -> None:
        """A new certificate and its key."""
        made = authority.issue_cert("127.0.0.1", "localhost")
        self.certificate.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        self.key.write_bytes(made.private_key_pem.bytes())


@pytest.fixture(scope="module")
def authorities() -> tuple[trustme.CA, trustme.CA]:
    """Two that know nothing of each other."""
    return trustme.CA(), trustme.CA()


@pytest.fixture
def files(tmp_path: Path, authorities: tuple[trustme.CA, trustme.CA]) -> Files:
    found = Files(tmp_path)
    found.write(authorities[0])
    return found


def trusting(authority: trustme.CA, client_of: trustme.CA | None = None) -> ssl.SSLContext:
    """A client that trusts one authority, and has a certificate of another one if need be."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if client_of is not None:
        client_of.issue_cert("client@example.org").configure_cert(context)
    return context


@contextmanager
def serving(tls_files: TlsFiles, context: ssl.SSLContext, **listen: Any) -> Iterator[RunningServer]:
    """A server that speaks TLS, once a client with that context is answered."""
    server = RunningServer(listen=ListenConfig(port=0, tls=Tls(tls_files), **listen))
    server.start(wait_ready=False)
    try:
        until = time.monotonic() + PATIENCE_S
        while ping(server, context) != 200:
            assert time.monotonic() < until
        yield server
    finally:
        server.http.stop()
        server.http.stop()
        server.join()


def address(server: RunningServer) -> str:
    return f"https://127.0.0.1:{server.port}"


def ping(server: RunningServer, context: ssl.SSLContext) -> int:
    return httpx.get(f"{address(server)}/ping", verify=context).status_code


def is_answered(server: RunningServer, context: ssl.SSLContext) -> bool:
    """Whether that client and the server come together. A client's certificate is judged after its handshake."""
    try:
        return ping(server, context) == 200
    except httpx.TransportError:
        return False


def wait_until(server: RunningServer, context: ssl.SSLContext) -> None:
    until = time.monotonic() + PATIENCE_S
    while not is_answered(server, context):
        assert time.monotonic() < until, "the server does not use its new files"


def test_https_is_spoken_and_nothing_else(files: Files, authorities: tuple[trustme.CA, trustme.CA]) -> None:
    context = trusting(authorities[0])
    with serving(TlsFiles(files.certificate, files.key), context) as server:
        answer = httpx.post(f"{address(server)}/invocations", json={"max_tokens": 3}, verify=context)
        assert answer.status_code == 200
        assert not is_answered(server, trusting(authorities[1]))
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{server.port}/ping")


def test_old_versions_are_not_spoken(files: Files, authorities: tuple[trustme.CA, trustme.CA]) -> None:
    assert make_context(TlsFiles(files.certificate, files.key)).minimum_version is ssl.TLSVersion.TLSv1_2
    context = trusting(authorities[0])
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        serving(TlsFiles(files.certificate, files.key), context) as server,
        socket.create_connection(("127.0.0.1", server.port)) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as connection,
    ):
        assert connection.version() == "TLSv1.2"


def test_certificate_and_key_may_be_in_one_file(files: Files, authorities: tuple[trustme.CA, trustme.CA]) -> None:
    files.certificate.write_bytes(files.certificate.read_bytes() + files.key.read_bytes())
    context = trusting(authorities[0])
    with serving(TlsFiles(files.certificate), context) as server:
        assert ping(server, context) == 200


def test_a_renewed_certificate_is_used_and_drops_no_connection(
    files: Files, authorities: tuple[trustme.CA, trustme.CA]
) -> None:
    old, new = (trusting(authority) for authority in authorities)
    body = {"stream": True, "max_tokens": 8}
    with (
        serving(TlsFiles(files.certificate, files.key), old, reload_s=0.02) as server,
        httpx.Client(base_url=address(server), verify=old) as client,
    ):
        gate = Gate()
        server.service.script = Script(gates={2: gate})
        with client.stream("POST", "/invocations", json=body) as answer:
            pieces = answer.iter_text()
            first = next(pieces)
            files.write(authorities[1])
            wait_until(server, new)
            assert not is_answered(server, old)
            gate.open()
            assert (first + "".join(pieces)).endswith("the end\n")
        assert client.get("/ping").status_code == 200  # on the connection that was there


@pytest.mark.parametrize("damage", ["half", "other key", "gone"])
def test_the_old_certificate_holds_while_the_files_are_wrong(
    files: Files, authorities: tuple[trustme.CA, trustme.CA], damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    context = trusting(authorities[0])
    with serving(TlsFiles(files.certificate, files.key), context, reload_s=0.02) as server:
        if damage == "gone":
            files.key.unlink()
        elif damage == "half":
            files.certificate.write_bytes(files.certificate.read_bytes()[:200])
        else:
            files.key.write_bytes(authorities[1].issue_cert("127.0.0.1").private_key_pem.bytes())
        until = time.monotonic() + PATIENCE_S
        while "certificates were not read anew" not in caplog.text:
            assert time.monotonic() < until
        assert ping(server, context) == 200
        files.write(authorities[1])
        wait_until(server, trusting(authorities[1]))


def test_clients_need_a_certificate_where_an_authority_is_named(
    files: Files, authorities: tuple[trustme.CA, trustme.CA]
) -> None:
    ours, theirs = authorities
    files.client_ca.write_bytes(ours.cert_pem.bytes())
    friend, stranger, nobody = trusting(ours, client_of=ours), trusting(ours, client_of=theirs), trusting(ours)
    with serving(TlsFiles(files.certificate, files.key, files.client_ca), friend, reload_s=0.02) as server:
        assert not is_answered(server, nobody)
        assert not is_answered(server, stranger)
        files.client_ca.write_bytes(theirs.cert_pem.bytes())
        wait_until(server, stranger)
        assert not is_answered(server, friend)
        assert not is_answered(server, nobody)


def test_no_session_is_resumed_where_clients_need_a_certificate(
    files: Files, authorities: tuple[trustme.CA, trustme.CA]
) -> None:
    """Who resumes one is not asked for a certificate again; in TLS 1.2 nothing would prevent that."""
    ours, _ = authorities
    files.client_ca.write_bytes(ours.cert_pem.bytes())
    friend, old = trusting(ours, client_of=ours), trusting(ours, client_of=ours)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with serving(TlsFiles(files.certificate, files.key, files.client_ca), friend) as server:
        assert not is_answered(server, old)
        session: ssl.SSLSession | None = None
        for _ in range(2):
            raw = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)
            with friend.wrap_socket(raw, server_hostname="127.0.0.1", session=session) as connection:
                connection.sendall(b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n")
                assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")  # what the server gives is here by now
                assert not connection.session_reused
                session = connection.session


def test_files_that_cannot_be_used_are_named(files: Files, tmp_path: Path) -> None:
    with pytest.raises(TlsError, match=r"cert\.pem and .*none\.pem: must be a certificate chain and its key"):
        Tls(TlsFiles(files.certificate, tmp_path / "none.pem"))
    with pytest.raises(TlsError, match=r"key\.pem: must be a certificate chain"):
        Tls(TlsFiles(files.key))
    files.client_ca.write_text("no certificate", encoding="ascii")
    with pytest.raises(TlsError, match=r"ca\.pem: must be certificates in PEM"):
        Tls(TlsFiles(files.certificate, files.key, files.client_ca))


def test_a_key_with_a_password_is_refused_and_not_asked_for(files: Files) -> None:
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    encryption = serialization.BestAvailableEncryption(b"password")
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    files.key.write_bytes(key.private_bytes(pem, pkcs8, encryption))
    with pytest.raises(TlsError, match="without a password"):
        Tls(TlsFiles(files.certificate, files.key))
