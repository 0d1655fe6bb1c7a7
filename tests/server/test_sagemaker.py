"""The routes of SageMaker's runtime, called by AWS's own client; only the service is scripted."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

import botocore  # type: ignore[import-untyped]
import httpx
import pytest
from botocore.exceptions import ClientError, EventStreamError  # type: ignore[import-untyped]

from dragoman.errors import EngineFailed, RequestTimeout, ServerError
from dragoman.server.apis.sagemaker import MAX_PAYLOAD_BYTES, payload_parts
from dragoman.server.app import ServerConfig
from tests.support.aws import aws_runtime
from tests.support.fake_service import FakeService, Gate, Script
from tests.support.real_dialects import real_dialects
from tests.support.running_server import RunningServer, running_server
from tests.support.tables import table

TEXT = " Deep learning is fun. 🍊"
BODY = json.dumps({"inputs": "hi", "parameters": {"max_new_tokens": 50}})
STREAM_BODY = json.dumps({"inputs": "hi", "parameters": {"max_new_tokens": 50}, "stream": True})


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RunningServer]:
    """One server with all real dialects."""
    with running_server(dialects=real_dialects()) as server:
        yield server


@pytest.fixture
def client(server: RunningServer) -> Iterator[Any]:
    """AWS's client."""
    with aws_runtime(server.url) as client:
        yield client


def lines(events: Iterable[Any]) -> Iterator[bytes]:
    """The lines of a response stream, put together as AWS's examples do: a part may end anywhere."""
    buffer = io.BytesIO()
    for event in events:
        buffer.write(event["PayloadPart"]["Bytes"])
        *complete, rest = buffer.getvalue().split(b"\n")
        yield from complete
        buffer = io.BytesIO()
        buffer.write(rest)
    assert buffer.getvalue() == b"", "a record without its end: readers would wait for ever"


def raw_stream(server: RunningServer, failure: ServerError) -> bytes:
    """The bytes of a stream that fails after its first records."""
    gate = Gate()
    server.service.script = Script(gates={2: gate}, failures={2: failure})
    with httpx.stream("POST", f"{server.url}/endpoints/e/invocations-response-stream", content=STREAM_BODY) as answer:
        gate.open()
        return answer.read()


class TestWholeAnswers:
    def test_an_endpoint_of_any_name_is_the_default_model(self, client: Any) -> None:
        answer = client.invoke_endpoint(EndpointName="my-endpoint", ContentType="application/json", Body=BODY)
        assert json.loads(answer["Body"].read()) == {"generated_text": TEXT}
        assert answer["ContentType"] == "application/json"
        assert answer["InvokedProductionVariant"] == "AllTraffic"
        assert "content-length" in answer["ResponseMetadata"]["HTTPHeaders"]

    def test_the_inference_id_is_the_request_id(self, client: Any) -> None:
        answer = client.invoke_endpoint(EndpointName="e", Body=BODY, InferenceId="mine-7", TargetVariant="blue")
        assert answer["ResponseMetadata"]["HTTPHeaders"]["x-request-id"] == "mine-7"
        assert answer["InvokedProductionVariant"] == "blue"

    def test_a_body_with_messages_is_a_chat(self, client: Any) -> None:
        body = json.dumps({"messages": [{"role": "user", "content": "hi"}]})
        answer = json.loads(client.invoke_endpoint(EndpointName="e", Body=body)["Body"].read())
        assert answer["choices"][0]["message"]["content"] == TEXT

    def test_a_stream_on_the_whole_operation_arrives_complete(self, client: Any) -> None:
        answer = client.invoke_endpoint(EndpointName="e", Body=STREAM_BODY)
        assert answer["ContentType"] == "application/jsonlines"
        records = [json.loads(line) for line in answer["Body"].read().splitlines()]
        assert "".join(record["token"]["text"] for record in records) == TEXT

    def test_a_failure_in_a_stream_on_the_whole_operation_is_its_last_line(
        self, server: RunningServer, client: Any
    ) -> None:
        gate = Gate()
        server.service.script = Script(gates={2: gate}, failures={2: EngineFailed("the kernel gave up")})
        answer = client.invoke_endpoint(EndpointName="e", Body=STREAM_BODY)
        gate.open()
        content = answer["Body"].read()
        assert json.loads(content.splitlines()[-1])["details"]["finish_reason"] == "error"


class TestErrors:
    @table("operation", ["invoke_endpoint", "invoke_endpoint_with_response_stream"])
    def test_the_models_error_is_a_model_error(self, client: Any, operation: str) -> None:
        body = json.dumps({"inputs": "hi", "parameters": {"max_new_tokens": -1}})
        with pytest.raises(client.exceptions.ModelError) as caught:
            getattr(client, operation)(EndpointName="e", Body=body)
        answer = caught.value.response
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == 424
        assert answer["Error"]["Code"] == "ModelError"
        assert "max_new_tokens" in answer["Error"]["Message"]
        assert answer["OriginalStatusCode"] == 424
        assert json.loads(answer["OriginalMessage"])["code"] == 424

    def test_a_full_queue_keeps_its_status_and_its_hint(self, server: RunningServer, client: Any) -> None:
        with server.admission.permit(server.admission.limit), pytest.raises(ClientError) as caught:
            client.invoke_endpoint(EndpointName="e", Body=BODY)
        assert caught.value.response["OriginalStatusCode"] == 503
        assert "retry-after" in caught.value.response["ResponseMetadata"]["HTTPHeaders"]
        assert "server error (503)" in str(caught.value)

    def test_an_unknown_target_is_an_error_though_an_unknown_endpoint_is_none(self, client: Any) -> None:
        with pytest.raises(ClientError) as caught:
            client.invoke_endpoint(EndpointName="e", Body=BODY, TargetModel="nobody.tar.gz")
        assert caught.value.response["Error"]["Code"] == "ValidationError"
        assert "nobody" in caught.value.response["Error"]["Message"]

    def test_a_body_over_the_limit_is_a_model_error(self) -> None:
        with running_server(ServerConfig(max_request_size_bytes=10), dialects=real_dialects()) as server:
            with aws_runtime(server.url) as client, pytest.raises(ClientError) as caught:
                client.invoke_endpoint(EndpointName="e", Body=BODY)
            assert caught.value.response["OriginalStatusCode"] == 413


class TestStreams:
    def test_records_end_in_newlines_and_their_texts_are_the_text(self, client: Any) -> None:
        answer = client.invoke_endpoint_with_response_stream(
            EndpointName="e", ContentType="application/json", Body=STREAM_BODY
        )
        assert answer["ContentType"] == "application/jsonlines"
        assert answer["InvokedProductionVariant"] == "AllTraffic"
        records = [json.loads(line) for line in lines(answer["Body"])]
        assert "".join(record["token"]["text"] for record in records) == TEXT
        assert records[-1]["generated_text"] == TEXT

    def test_parts_arrive_as_they_are_made(self, server: RunningServer, client: Any) -> None:
        gate = Gate()
        server.service.script = Script(gates={2: gate})
        stream = lines(client.invoke_endpoint_with_response_stream(EndpointName="e", Body=STREAM_BODY)["Body"])
        assert "generated_text" not in json.loads(next(stream))
        gate.open()
        assert json.loads(list(stream)[-1])["generated_text"] == TEXT

    def test_a_whole_answer_is_one_record_with_an_end(self, client: Any) -> None:
        answer = client.invoke_endpoint_with_response_stream(EndpointName="e", Body=BODY)
        assert answer["ContentType"] == "application/json"
        assert [json.loads(line) for line in lines(answer["Body"])] == [{"generated_text": TEXT}]

    def test_its_own_accept_header_chooses_the_framing(self, client: Any) -> None:
        answer = client.invoke_endpoint_with_response_stream(
            EndpointName="e", Body=STREAM_BODY, Accept="text/event-stream"
        )
        assert answer["ContentType"] == "text/event-stream"
        assert all(line.startswith(b"data: ") for line in lines(answer["Body"]) if line)

    @table(
        ("failure", "code"),
        [
            (EngineFailed("the kernel gave up"), b"StreamBroken"),
            (RequestTimeout("took too long"), b"ModelInvocationTimeExceeded"),
        ],
        ids=lambda value: value.kind if isinstance(value, ServerError) else "",
    )
    def test_a_failure_is_told_in_the_models_words_and_then_raised(
        self, server: RunningServer, client: Any, failure: ServerError, code: bytes
    ) -> None:
        gate = Gate()
        server.service.script = Script(gates={2: gate}, failures={2: failure})
        answer = client.invoke_endpoint_with_response_stream(EndpointName="e", Body=STREAM_BODY)
        gate.open()
        parts: list[bytes] = []
        with closing(answer["Body"]), pytest.raises(EventStreamError, match=failure.message) as caught:
            parts.extend(event["PayloadPart"]["Bytes"] for event in answer["Body"])
        assert caught.value.response["Error"]["Code"] == "ModelStreamError"
        last = json.loads(b"".join(parts).splitlines()[-1])
        assert (last["details"]["finish_reason"], last["error"]) == ("error", failure.message)
        assert code in raw_stream(server, failure)

    def test_a_client_that_leaves_aborts_the_generation(self, server: RunningServer, client: Any) -> None:
        server.service.script = Script(gates={2: Gate()})
        answer = client.invoke_endpoint_with_response_stream(EndpointName="e", Body=STREAM_BODY, InferenceId="gone")
        next(iter(answer["Body"]))
        answer["Body"].close()
        server.service.journal.wait_for(lambda journal: "abort gone" in journal)

    def test_long_payloads_travel_in_several_messages(self) -> None:
        buffer = botocore.eventstream.EventStreamBuffer()
        content = bytes(range(256)) * (MAX_PAYLOAD_BYTES // 100)
        raw = payload_parts(content)
        for start in range(0, len(raw), 99_991):  # the reader checks every length and checksum
            buffer.add_data(raw[start : start + 99_991])
        payloads = [event.payload for event in buffer]
        assert len(payloads) == 3
        assert b"".join(payloads) == content
        assert payload_parts(b"") == b""


class TestModels:
    def test_an_endpoint_or_a_target_with_a_models_name_is_that_model(self) -> None:
        with running_server(dialects=real_dialects()) as own, aws_runtime(own.url) as client:
            other = FakeService()
            own.add_model("other", other)
            client.invoke_endpoint(EndpointName="other", Body=BODY, InferenceId="by-endpoint")
            client.invoke_endpoint(EndpointName="e", Body=BODY, InferenceId="by-target", TargetModel="/other.tar.gz")
            client.invoke_endpoint(EndpointName="e", Body=BODY, InferenceId="c", InferenceComponentName="other")
            client.invoke_endpoint(EndpointName="e", Body=BODY, InferenceId="a", CustomAttributes="model_name=other")
            assert [request.request_id for request in other.requests] == ["by-endpoint", "by-target", "c", "a"]
            assert own.service.requests == []


def test_a_key_can_be_sent_as_custom_attribute_by_a_client_that_does_not_sign() -> None:
    config = ServerConfig(api_keys=frozenset({"key"}))
    with (
        running_server(config, dialects=real_dialects()) as server,
        aws_runtime(server.url, signature_version=botocore.UNSIGNED) as client,
    ):
        attributes = "authorization=Bearer key"
        assert client.invoke_endpoint(EndpointName="e", Body=BODY, CustomAttributes=attributes)["Body"].read()
        with pytest.raises(ClientError) as caught:
            client.invoke_endpoint(EndpointName="e", Body=BODY)
        assert caught.value.response["OriginalStatusCode"] == 401
