"""Checks signatures of AWS clients (Signature Version 4) against the operator's key pairs. On the event loop.

Presigned URLs count as not signed. Bodies that are not signed, or are signed chunk by chunk, are refused. Source: AWS
IAM User Guide, "Create a signed AWS API request" and "Signature Version 4 request elements".
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import parse_qsl, quote

from dragoman.errors import BadSignature
from dragoman.server.security.callers import Caller
from dragoman.server.security.keyring import KeyPair

ALGORITHM = "AWS4-HMAC-SHA256"
SERVICE = "sagemaker"  # whose runtime this server answers for; a signature for another service is not meant for it
MAX_SKEW_S = 300.0  # what AWS allows

DATE, TOKEN, BODY_HASH = "x-amz-date", "x-amz-security-token", "x-amz-content-sha256"

_FIELD = re.compile(
    rf"{ALGORITHM} +Credential=(?P<id>\w+)/(?P<date>[0-9]{{8}})/(?P<region>[a-z0-9-]+)/(?P<service>[a-z0-9-]+)/aws4_request"
    r", *SignedHeaders=(?P<names>[a-z0-9!#$%&'*+.^_`|~;-]+), *Signature=(?P<signature>[0-9a-f]{64})",
    re.ASCII,
)
_UNSIGNED_BY_CLIENTS = frozenset({"x-amzn-trace-id"})  # load balancers add it on the way
_STRANGER = KeyPair("", os.urandom(32).hex(), Caller(""))  # so that an unknown key takes as long as a wrong signature

Fields = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class RawHead:
    """The head of a request as it arrived: path and query still encoded, header fields not joined."""

    method: str
    path: bytes
    query: bytes
    fields: Fields


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request whose head was checked, and whose body was not yet."""

    pair: KeyPair
    head: RawHead
    names: Sequence[str]
    scope: Sequence[str]  # of the signature: date, region, service
    stamp: str
    signature: str = field(repr=False)

    def check(self, body: bytes) -> Caller:
        """The caller who signed it. Raises: BadSignature."""
        body_hash = hashlib.sha256(body).hexdigest()
        canonical = _canonical_request(self.head, self.names, body_hash)
        scope = "/".join((*self.scope, "aws4_request"))
        hashed = hashlib.sha256(canonical).hexdigest()
        text = f"{ALGORITHM}\n{self.stamp}\n{scope}\n{hashed}"
        expected = hmac.digest(_signing_key(self.pair.secret, self.scope), text.encode(), "sha256").hex()
        digests = _values(self.head.fields, BODY_HASH)
        is_body_told = not digests or digests == [body_hash]
        if not hmac.compare_digest(expected, self.signature) or not is_body_told or self.pair is _STRANGER:
            raise BadSignature(
                "The request signature does not match: the access key, its secret, or the signed content differs"
            )
        return self.pair.caller


def is_signed(authorization: str) -> bool:
    return authorization.startswith(ALGORITHM)


def read_signature(
    head: RawHead, pairs: Mapping[str, KeyPair], clock: Callable[[], float] = time.time
) -> SignedRequest:
    """The signature, checked as far as possible without the body. `clock`: since the epoch. Raises: BadSignature."""
    match = _FIELD.fullmatch(", ".join(_values(head.fields, "authorization")))
    if match is None:
        raise BadSignature(f"The header Authorization must have the form of {ALGORITHM}, with one signature")
    if match["service"] != SERVICE:
        raise BadSignature(f"The signature must be for the service {SERVICE}, it is for {match['service'][:40]}")
    stamp = _stamp(head, match["date"], clock())
    names = match["names"].split(";")
    _check_names(head, names)
    for digest in _values(head.fields, BODY_HASH):
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise BadSignature(f"The body must be signed: {BODY_HASH} must be its SHA-256, got {digest[:40]!r}")
    pair = pairs.get(match["id"], _STRANGER)
    token = "".join(_values(head.fields, TOKEN))
    if pair is not _STRANGER and not hmac.compare_digest(token.encode(), pair.session_token.encode()):
        raise BadSignature("The session token does not belong to this access key")
    return SignedRequest(pair, head, names, (match["date"], match["region"], SERVICE), stamp, match["signature"])


def _stamp(head: RawHead, date: str, now_s: float) -> str:
    """The time of signing, as the client writes it. Raises: BadSignature if it is too far from now."""
    stamp = ", ".join(_values(head.fields, DATE))
    try:
        signed_s = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise BadSignature(f"The header {DATE} must have the form 20260102T030405Z, got {stamp[:40]!r}") from None
    if not stamp.startswith(date):
        raise BadSignature(f"The signature is of {date}, {DATE} of {stamp}")
    if abs(now_s - signed_s) > MAX_SKEW_S:
        raise BadSignature(
            f"The signature is of {stamp}, more than {MAX_SKEW_S / 60:g} minutes from now; check the clock"
        )
    return stamp


def _check_names(head: RawHead, names: Sequence[str]) -> None:
    """Raises: BadSignature unless all fields are signed that could change what the call means."""
    if list(names) != sorted(set(names)):
        raise BadSignature("SignedHeaders must be sorted, each header once")
    sent = {name.decode("latin-1").lower() for name, _ in head.fields}
    needed = {name for name in sent if name == "content-type" or name.startswith("x-amz")} - _UNSIGNED_BY_CLIENTS
    if missing := sorted(({"host", DATE} | needed) - set(names)):
        raise BadSignature(f"The header {missing[0]} must be signed")
    if absent := sorted(set(names) - sent):
        raise BadSignature(f"The header {absent[0][:40]} is signed but was not sent")


def _canonical_request(head: RawHead, names: Sequence[str], body_hash: str) -> bytes:
    """The signed part of the request. Does not normalise paths: `a/../b` is routed as it is, too."""
    lines = [f"{name}:{','.join(_values(head.fields, name))}\n" for name in names]
    path = quote(head.path, safe="/-_.~")  # encoded a second time, as for all services but S3
    text = "\n".join((head.method, path, _canonical_query(head.query), "".join(lines), ";".join(names), body_hash))
    return text.encode("latin-1")


def _canonical_query(query: bytes) -> str:
    """The query as the server reads it, so that one signature never fits two queries with different meanings."""
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, encoding="latin-1")
    encoded = sorted(
        (quote(name, safe="-_.~", encoding="latin-1"), quote(value, safe="-_.~", encoding="latin-1"))
        for name, value in pairs
    )
    return "&".join(f"{name}={value}" for name, value in encoded)


def _signing_key(secret: str, scope: Sequence[str]) -> bytes:
    key = b"AWS4" + secret.encode()
    for part in (*scope, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def _values(fields: Fields, name: str) -> list[str]:
    wanted = name.encode("latin-1")
    return [" ".join(value.decode("latin-1").split()) for key, value in fields if key.lower() == wanted]
