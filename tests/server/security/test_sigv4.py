"""Signatures of AWS clients: what botocore signs is taken, and nothing that was changed on the way."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth  # type: ignore[import-untyped]
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
from botocore.credentials import Credentials  # type: ignore[import-untyped]
from botocore.exceptions import ClientError  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.errors import BadSignature
from dragoman.server.app import ServerConfig
from dragoman.server.security.callers import Caller, Scope
from dragoman.server.security.keyring import KeyPair, KeySources
from dragoman.server.security.sigv4 import RawHead, read_signature
from tests.support.aws import aws_runtime
from tests.support.real_dialects import real_dialects
from tests.support.running_server import RunningServer, running_server
from tests.support.tables import table
from tests.support.tiers import examples

ALICE = KeyPair("ALICE", "s3cret/+=", Caller("alice"))
CAROL = KeyPair("CAROL", "other", Caller("carol"), session_token="to/ken==")
PAIRS = {pair.access_key_id: pair for pair in (ALICE, CAROL)}
URL = "http://server:8080/endpoints/e%20f/invocations?b=2&a=1%2B%C3%A9&a=&flag="
BODY = b'{"inputs": "hi"}'


def signed(
    method: str = "POST",
    url: str = URL,
    body: bytes = BODY,
    headers: Mapping[str, str] | None = None,
    pair: KeyPair = ALICE,
    service: str = "sagemaker",
) -> tuple[RawHead, bytes]:
    """What arrives when botocore has signed that."""
    sent = {"Content-Type": "application/json", "X-Amzn-SageMaker-Target-Model": "two  words", **(headers or {})}
    request = AWSRequest(method, url, data=body, headers=sent)
    credentials = Credentials(pair.access_key_id, pair.secret, pair.session_token or None)
    SigV4Auth(credentials, service, "us-east-1").add_auth(request)
    fields = [("host", url.split("/")[2]), *request.headers.items()]
    path, _, query = url.removeprefix("http://").partition("/")[2].partition("?")
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in fields]
    return RawHead(method, b"/" + path.encode(), query.encode(), raw), body


def taken(head: RawHead, body: bytes, skew_s: float = 0.0) -> Caller:
    return read_signature(head, PAIRS, lambda: time.time() + skew_s).check(body)


def changed(head: RawHead, name: str, change: Callable[[str], str]) -> RawHead:
    fields = [(key, change(value.decode()).encode() if key == name.encode() else value) for key, value in head.fields]
    assert fields != head.fields
    return replace(head, fields=fields)


def without(head: RawHead, name: str) -> RawHead:
    return replace(head, fields=[(key, value) for key, value in head.fields if key != name.encode()])


def test_what_botocore_signs_is_taken() -> None:
    assert taken(*signed()).name == "alice"
    assert taken(*signed("GET", "http://server/models", b"")).name == "alice"


def test_a_session_token_is_part_of_the_key() -> None:
    assert taken(*signed(pair=CAROL)).name == "carol"
    head, body = signed(pair=CAROL)
    for wrong in (
        changed(head, "x-amz-security-token", lambda text: text + "x"),
        without(head, "x-amz-security-token"),
    ):
        with pytest.raises(BadSignature):
            taken(wrong, body)
    with pytest.raises(BadSignature, match="session token"):
        taken(*signed(pair=replace(ALICE, session_token="made up")))


AUTHORIZATION = "authorization"

TAMPERED: Mapping[str, Callable[[RawHead], RawHead]] = {
    "method": lambda head: replace(head, method="PUT"),
    "path": lambda head: replace(head, path=head.path.replace(b"invocations", b"invocationz")),
    "path, encoded otherwise": lambda head: replace(head, path=head.path.replace(b"e%20f", b"%65%20f")),
    "path with dots": lambda head: replace(head, path=b"/x/.." + head.path),
    "query value": lambda head: replace(head, query=head.query.replace(b"b=2", b"b=3")),
    "query, another one": lambda head: replace(head, query=head.query + b"&model_name=x"),
    "query, plus for blank": lambda head: replace(head, query=head.query.replace(b"%2B", b"+")),
    "query, one less": lambda head: replace(head, query=head.query.replace(b"&flag=", b"")),
    "host": lambda head: changed(head, "host", lambda text: "elsewhere:8080"),
    "content type": lambda head: changed(head, "content-type", lambda text: "text/plain"),
    "signed field": lambda head: changed(head, "x-amzn-sagemaker-target-model", lambda text: "another"),
    "signed field, gone": lambda head: without(head, "x-amzn-sagemaker-target-model"),
    "signed field, twice": lambda head: replace(
        head, fields=[*head.fields, (b"x-amzn-sagemaker-target-model", b"another")]
    ),
    "unsigned field": lambda head: replace(head, fields=[*head.fields, (b"x-amzn-sagemaker-accept", b"a/b")]),
    "date": lambda head: changed(head, "x-amz-date", lambda text: text[:-3] + f"{(int(text[-3:-1]) + 1) % 60:02}Z"),
    "key id": lambda head: changed(head, AUTHORIZATION, lambda text: text.replace("ALICE", "CAROL")),
    "unknown key id": lambda head: changed(head, AUTHORIZATION, lambda text: text.replace("ALICE", "MALLORY")),
    "date of the scope": lambda head: changed(head, AUTHORIZATION, lambda text: text.replace("/20", "/19", 1)),
    "region": lambda head: changed(head, AUTHORIZATION, lambda text: text.replace("us-east-1", "us-east-2")),
    "service": lambda head: changed(head, AUTHORIZATION, lambda text: text.replace("/sagemaker/", "/s3/")),
    "signed headers": lambda head: changed(head, AUTHORIZATION, lambda text: text.replace("host;", "")),
    "signature": lambda head: changed(head, AUTHORIZATION, lambda text: text[:-1] + ("0" if text[-1] != "0" else "1")),
    "no signature": lambda head: changed(head, AUTHORIZATION, lambda text: text[: text.index("Signature=") + 10]),
    "two of them": lambda head: replace(
        head, fields=[*head.fields, *[(key, value) for key, value in head.fields if key == b"authorization"]]
    ),
}


@table("part", TAMPERED)
def test_whatever_is_changed_on_the_way_is_refused(part: str) -> None:
    head, body = signed()
    with pytest.raises(BadSignature) as caught:
        taken(TAMPERED[part](head), body)
    assert ALICE.secret not in str(caught.value)


@table("body", [b"", BODY + b" ", BODY.replace(b"hi", b"ho")])
def test_another_body_is_refused(body: bytes) -> None:
    with pytest.raises(BadSignature):
        taken(signed()[0], body)


def test_another_secret_is_refused() -> None:
    with pytest.raises(BadSignature, match="does not match"):
        taken(*signed(pair=replace(ALICE, secret="guessed")))


def test_the_comparison_in_constant_time_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmac.compare_digest", lambda *_: True)
    assert taken(*signed(pair=replace(ALICE, secret="guessed"))).name == "alice"
    monkeypatch.setattr("hmac.compare_digest", lambda *_: False)
    with pytest.raises(BadSignature):
        taken(*signed())


@table("skew_s", [-301, 301, -90_000])
def test_an_old_signature_is_refused(skew_s: float) -> None:
    with pytest.raises(BadSignature, match="5 minutes"):
        taken(*signed(), skew_s)


@table("skew_s", [-290, 0, 290])
def test_clocks_may_differ_by_some_minutes(skew_s: float) -> None:
    assert taken(*signed(), skew_s).name == "alice"


@table("told", ["UNSIGNED-PAYLOAD", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"])
def test_a_body_that_is_not_signed_whole_is_refused_by_name(told: str) -> None:
    with pytest.raises(BadSignature, match=f"must be signed.*{told}"):
        taken(*signed(headers={"X-Amz-Content-SHA256": told}))


def test_a_hash_that_is_told_beside_must_be_the_bodys() -> None:
    head, body = signed()
    with pytest.raises(BadSignature):
        taken(replace(head, fields=[*head.fields, (b"x-amz-content-sha256", b"0" * 64)]), body)


def test_what_load_balancers_add_needs_no_signature() -> None:
    head, body = signed()
    assert taken(replace(head, fields=[*head.fields, (b"x-amzn-trace-id", b"Root=1")]), body).name == "alice"


SEGMENTS = st.text("abzAZ09-_.~ +/%é:@", min_size=1, max_size=8)


@settings(max_examples=examples(60))
@given(
    st.lists(SEGMENTS.filter(lambda text: text not in (".", "..")), min_size=1, max_size=3),
    st.lists(st.tuples(SEGMENTS, SEGMENTS), max_size=3),
    st.binary(max_size=20),
)
def test_every_path_query_and_body_is_read_as_botocore_writes_them(
    segments: list[str], query: list[tuple[str, str]], body: bytes
) -> None:
    path = "/".join(quote(segment, safe="") for segment in segments)
    pairs = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query)
    assert taken(*signed(url=f"http://server/{path}" + (f"?{pairs}" if pairs else ""), body=body)).name == "alice"


# --- over HTTP --------------------------------------------------------------------------------------------------------


CREDENTIALS = """
[alice]
aws_access_key_id = ALICE
aws_secret_access_key = s3cret/+=
scopes = inference

[watcher]
aws_access_key_id = WATCHER
aws_secret_access_key = w
scopes = metrics
"""


@pytest.fixture
def credentials(tmp_path: Path) -> Path:
    path = tmp_path / "credentials"
    path.write_text(CREDENTIALS, encoding="utf-8")
    return path


def protected(credentials: Path) -> ServerConfig:
    return ServerConfig(api_keys=frozenset({"bearer"}), key_sources=KeySources(aws_file=credentials))


def runtime(server: RunningServer, key_id: str = "ALICE", secret: str = "s3cret/+=", **more: Any) -> Any:
    return aws_runtime(server.url, key=(key_id, secret), **more)


PROMPT = json.dumps({"inputs": "hi", "parameters": {"max_new_tokens": 3}})


def test_boto3_calls_a_protected_server(credentials: Path) -> None:
    with running_server(protected(credentials), dialects=real_dialects()) as server, runtime(server) as client:
        answer = client.invoke_endpoint(EndpointName="e", Body=PROMPT, TargetModel="fake", CustomAttributes="a=b c")
        assert json.loads(answer["Body"].read())["generated_text"]
        assert client.invoke_endpoint(EndpointName="e", Body=PROMPT + " " * 100_000)["Body"].read()
        stream = client.invoke_endpoint_with_response_stream(EndpointName="a.b-c_d", Body=PROMPT)
        assert b"".join(event["PayloadPart"]["Bytes"] for event in stream["Body"])


@table(
    ("key_id", "secret", "code"),
    [
        ("ALICE", "wrong", "InvalidSignatureException"),
        ("MALLORY", "s3cret/+=", "InvalidSignatureException"),
        ("WATCHER", "w", "AccessDeniedException"),
    ],
)
def test_aws_clients_are_told_in_words_that_they_know(credentials: Path, key_id: str, secret: str, code: str) -> None:
    with (
        running_server(protected(credentials), dialects=real_dialects()) as server,
        runtime(server, key_id, secret) as client,
    ):
        for body in (PROMPT, PROMPT + " " * 100_000):  # large ones are hashed on a thread
            with pytest.raises(ClientError) as caught:
                client.invoke_endpoint(EndpointName="e", Body=body)
            error = caught.value.response
            assert (error["Error"]["Code"], error["ResponseMetadata"]["HTTPStatusCode"]) == (code, 403)
        assert server.service.requests == []


def test_presigned_urls_open_nothing(credentials: Path) -> None:
    with running_server(protected(credentials), dialects=real_dialects()) as server:
        url = f"{server.url}/endpoints/e/invocations"
        request = AWSRequest("POST", url, data=PROMPT, headers={"content-type": "application/json"})
        SigV4QueryAuth(Credentials("ALICE", "s3cret/+="), "sagemaker", "us-east-1").add_auth(request)
        answer = httpx.post(request.url, content=PROMPT, headers={"content-type": "application/json"})
        assert '"OriginalStatusCode":401' in answer.text
        assert server.service.requests == []


def test_a_key_goes_before_a_signature_that_is_not_meant_for_this_server(credentials: Path) -> None:
    with (
        running_server(protected(credentials), dialects=real_dialects()) as server,
        runtime(server, "any", "any") as client,
    ):
        assert client.invoke_endpoint(EndpointName="e", Body=PROMPT, CustomAttributes="x-api-key=bearer")["Body"].read()


def test_signatures_open_routes_of_other_apis_too(credentials: Path) -> None:
    with running_server(protected(credentials)) as server:
        request = AWSRequest("GET", f"{server.url}/v1/models", headers={})
        SigV4Auth(Credentials("ALICE", "s3cret/+="), "sagemaker", "eu-west-3").add_auth(request)
        headers = dict(request.headers.items())
        assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == 200
        assert httpx.get(f"{server.url}/models", headers=headers).status_code == 401


def test_a_key_pair_may_be_given_as_a_text() -> None:
    with running_server(ServerConfig(key_sources=KeySources(aws="ID:a/b+c")), dialects=real_dialects()) as server:
        with runtime(server, "ID", "a/b+c") as client:
            assert client.invoke_endpoint(EndpointName="e", Body=PROMPT)["Body"].read()
        assert httpx.get(f"{server.url}/v1/models").status_code == 401


def test_scopes_of_key_pairs_are_those_of_the_file(credentials: Path) -> None:
    keyring = protected(credentials).read_keys()
    assert keyring is not None
    assert {pair.caller.name: pair.caller.scopes for pair in keyring.pairs.values()} == {
        "alice": {Scope.INFERENCE},
        "watcher": {Scope.METRICS},
    }
