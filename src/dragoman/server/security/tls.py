"""TLS, with certificates that are renewed while the server runs: each new connection gets the newest one."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

MINIMUM = ssl.TLSVersion.TLSv1_2


class TlsError(Exception):
    """A certificate or key cannot be used; one line that names the file."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The operator's files, in PEM. `key` None = in `certificate`. `client_ca`: signs clients' certificates, if needed."""

    certificate: Path
    key: Path | None = None
    client_ca: Path | None = None

    @property
    def all(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.certificate, self.key, self.client_ca) if path is not None)


class Tls:
    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._current = make_context(files)
        self.context = make_context(files)
        """The context of the listening socket. It hands over to the newest one once a client has said hello."""
        self.context.sni_callback = self._hand_over

    @property
    def files(self) -> tuple[Path, ...]:
        return self._files.all

    def reload(self) -> None:
        """Use the current content of the files. Raises: TlsError, and changes nothing then."""
        self._current = make_context(self._files)

    def _hand_over(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._current


def make_context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = MINIMUM
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except (OSError, ValueError) as error:
        named = files.certificate if files.key is None else f"{files.certificate} and {files.key}"
        raise TlsError(
            f"{named}: must be a certificate chain and its key, in PEM, without a password: {error}"
        ) from error
    if files.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        # A client that resumes a session is not asked for a certificate again, so none are resumed. TLS 1.2 also resumes
        # them by a number, out of a cache that Python cannot switch off.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
        try:
            context.load_verify_locations(files.client_ca)
        except (OSError, ValueError) as error:
            raise TlsError(f"{files.client_ca}: must be certificates in PEM: {error}") from error
    return context


def _no_password() -> str:
    """Raises: ValueError, because OpenSSL would ask at the terminal."""
    raise ValueError("the key has a password")
