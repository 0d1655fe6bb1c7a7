"""`dragoman serve` on a port that others reach: warnings, TLS, keys that are replaced. No model is loaded."""

from __future__ import annotations

import signal
import ssl
import time
from pathlib import Path

import httpx
import pytest
import trustme

from dragoman.cli.arguments import read_arguments
from dragoman.cli.serve import warn_if_open
from dragoman.config.resolve import Config, ConfigError, demo_model_dir, resolve
from dragoman.config.server_options import ServerSettings
from dragoman.host.settings import server_config, tls_of
from tests.support.patience import PATIENCE_S
from tests.support.server_process import ServerProcess, serve
from tests.support.tables import table


@pytest.fixture
def store(tmp_path: Path) -> tuple[str, ...]:
    """A command line without models."""
    (tmp_path / "store").mkdir()
    return ("--load-models", "NONE", "--model-store", str(tmp_path / "store"))


def write(authority: trustme.CA, path: Path) -> None:
    """Certificate and key in one file."""
    path.write_bytes(authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.bytes())


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def status(server: ServerProcess, context: ssl.SSLContext, key: str) -> int:
    """The status for a client with that key, 0 = the client does not trust the server."""
    try:
        url = f"{server.base_url}/v1/models"
        return httpx.get(url, headers={"x-api-key": key}, verify=context, timeout=PATIENCE_S).status_code
    except httpx.ConnectError:
        return 0


def test_keys_and_certificates_are_reloaded_on_sighup(store: tuple[str, ...], tmp_path: Path) -> None:
    keys, certificate = tmp_path / "keys", tmp_path / "cert.pem"
    old, new = trustme.CA(), trustme.CA()
    keys.write_text("old", encoding="utf-8")
    write(old, certificate)
    with serve(*store, "--api-key-file", str(keys), "--tls-cert", str(certificate)) as server:
        assert server.base_url.startswith("https://127.0.0.1:")
        assert status(server, trusting(old), "old") == 200
        keys.write_text("renewed", encoding="utf-8")
        write(new, certificate)
        server.process.send_signal(signal.SIGHUP)
        until = time.monotonic() + PATIENCE_S
        while status(server, trusting(new), "renewed") != 200:
            assert time.monotonic() < until
        assert status(server, trusting(new), "old") == 401
        assert status(server, trusting(old), "renewed") == 0
        assert server.terminate() == 0
    assert "the keys were read anew" in "".join(server.output)


@pytest.mark.full("a start for a line of the log, which is asked for below without one")
def test_a_server_open_to_other_machines_warns(store: tuple[str, ...]) -> None:
    with serve(*store, "--host", "0.0.0.0") as server:
        assert server.terminate() == 0
    assert "anybody who reaches 0.0.0.0 may use this server" in "".join(server.output)


def configured(*words: str) -> Config:
    return resolve(read_arguments(list(words)).givens, {}, demo_model_dir())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--host 0.0.0.0", "anybody who reaches 0.0.0.0 may use this server"),
        ("--host 0.0.0.0 --api-key-file keys", "keys and texts travel readable to 0.0.0.0: set --tls-cert"),
        ("--host 0.0.0.0 --api-key-file keys --tls-cert cert.pem", ""),
        ("--host 0.0.0.0 --tls-cert cert.pem", "anybody who reaches 0.0.0.0 may use this server"),
        ("--host 0.0.0.0 --tls-cert cert.pem --tls-client-ca ca.pem", ""),
        ("--host ::1", ""),
        ("", ""),
    ],
)
def test_a_warning_names_the_open_address(words: str, told: str, caplog: pytest.LogCaptureFixture) -> None:
    warn_if_open(configured(*words.split()))
    assert len(caplog.messages) == bool(told)
    assert all(told in message for message in caplog.messages)


@table(
    ("host", "is_it"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("192.168.0.1", False), ("example.org", False), ("127.0.0.1,::1", True), ("localhost,192.168.0.1", False)],
)  # fmt: skip
def test_local_addresses_are_recognised(host: str, is_it: bool) -> None:
    assert ServerSettings(host=host).is_local is is_it


def begin(*words: str) -> None:
    """Check the configuration as a start does before it listens."""
    config = configured(*words)
    server_config(config)
    tls_of(config)


@table(
    ("words", "told"),
    [
        ("--tls-client-ca ca.pem", "--tls-client-ca=ca.pem (command line): needs tls_cert"),
        ("--tls-key key.pem", "--tls-key=key.pem (command line): needs tls_cert"),
        (
            "--tls-cert none.pem",
            "--tls-cert=none.pem (command line): none.pem: must be a certificate chain and its key",
        ),
        ("--cors-allowed-origin * --cors-allow-credentials", "name the origins that you trust"),
        ("--cors-allowed-origin null", "must be * for all, or origins"),
        (
            "--aws-credentials none",
            "--aws-credentials=none (command line): none: must be a readable UTF-8 file: No such file",
        ),
        (
            "--api-key-file none",
            "--api-key-file=none (command line): none: must be a readable UTF-8 file: No such file",
        ),
        ("--open-scopes all", "must be any of inference, metrics, management, debug"),
    ],
)
def test_ineffective_protection_stops_the_start(words: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        begin(*words.split())
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_key_file_without_keys_stops_the_start(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    with pytest.raises(ConfigError, match="must hold at least one key, one per line") as caught:
        begin("--api-key-file", str(empty))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("words", ["--rate-limit-tokens 5", "--open-scopes metrics", "--cors-allow-credentials"])
def test_options_without_effect_without_keys_or_origins_are_noted(words: str) -> None:
    assert f"{words.split()[0]}=" in "".join(configured(*words.split()).notices)
