"""Models that are loaded when a call targets them, by AWS's own client and by plain calls."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]

from tests.support.aws import aws_runtime
from tests.support.fake_service import Gate, Script
from tests.support.real_dialects import real_dialects
from tests.support.running_server import RunningServer, post_bytes, running_server

TEXT = " Deep learning is fun. 🍊"
REQUEST = {"inputs": "hi", "parameters": {"max_new_tokens": 50}}
BODY = json.dumps(REQUEST)
STREAM_BODY = json.dumps({**REQUEST, "stream": True})


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """A server with a store of three models, two of which fit beside `fake`."""
    with running_server(dialects=real_dialects(), has_hosting=True) as server:
        server.hosting.store = {name: f"/opt/ml/models/{name}.tar.gz" for name in ("a", "b", "c")}
        server.hosting.room = 2
        yield server


@pytest.fixture
def client(server: RunningServer) -> Iterator[Any]:
    """AWS's client."""
    with aws_runtime(server.url) as client:
        yield client


def invoke(client: Any, target: str) -> str:
    """The answer of a target model."""
    answer = client.invoke_endpoint(EndpointName="e", Body=BODY, TargetModel=target)
    return str(json.loads(answer["Body"].read())["generated_text"])


def loaded(server: RunningServer) -> list[str]:
    """The names of the models that are served, as the contract lists them."""
    return [model["modelName"] for model in httpx.get(f"{server.url}/models").json()["models"]]


class TestOnDemand:
    def test_a_target_is_loaded_once_and_the_least_recently_used_one_leaves(
        self, server: RunningServer, client: Any
    ) -> None:
        for target in ("a.tar.gz", "/b.tar.gz", "a.tar.gz", "c", "a.tar.gz"):
            assert invoke(client, target) == TEXT
        assert loaded(server) == ["fake", "a", "c"]
        changes = [line for line in server.hosting.journal.lines if not line.startswith("load ")]
        assert changes == ["loaded a", "loaded b", "unloaded b", "loaded c"]
        assert len(server.hosting.services["a"][0].requests) == 3
        assert server.service.requests == []

    def test_a_model_that_had_to_make_room_comes_back_for_whoever_asks_for_it(
        self, server: RunningServer, client: Any
    ) -> None:
        for name in ("a", "b", "c"):
            invoke(client, name)
        assert loaded(server) == ["fake", "b", "c"]
        body = {"model": "a", "prompt": "hi", "max_tokens": 40}
        assert httpx.post(f"{server.url}/v1/completions", json=body).json()["choices"][0]["text"] == TEXT
        assert httpx.post(f"{server.url}/predictions/b", json=REQUEST).json() == {"generated_text": TEXT}
        assert loaded(server) == ["fake", "a", "b"]
        conversation = {"model": "nobody", "messages": [{"role": "user", "content": "hi"}]}
        assert httpx.post(f"{server.url}/v1/chat/completions", json=conversation).status_code == 404

    def test_calls_at_the_same_time_share_one_load(self, server: RunningServer, client: Any) -> None:
        server.hosting.gates["a"] = Gate()
        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(invoke, client, "a.tar.gz") for _ in range(4)]
            server.hosting.journal.wait_for(lambda journal: "load a" in journal)
            server.hosting.gates["a"].open()
            assert [answer.result() for answer in answers] == [TEXT] * 4
        assert server.hosting.journal.lines.count("load a") == 1

    def test_a_stream_keeps_its_model_while_it_runs(self, server: RunningServer, client: Any) -> None:
        invoke(client, "a")
        invoke(client, "b")
        gate = Gate()
        server.hosting.services["a"][0].script = Script(gates={2: gate})
        answer = client.invoke_endpoint_with_response_stream(
            EndpointName="e", Body=STREAM_BODY, CustomAttributes="X-Amzn-SageMaker-Target-Model=a"
        )
        invoke(client, "c")
        assert loaded(server) == ["fake", "a", "c"]  # b left, though a had been used before it
        gate.open()
        text = b"".join(event["PayloadPart"]["Bytes"] for event in answer["Body"])
        assert json.loads(text.splitlines()[-1])["generated_text"] == TEXT

    def test_an_answer_to_poll_for_keeps_its_model_too(self, server: RunningServer, client: Any) -> None:
        invoke(client, "a")
        gate = Gate()
        service = server.hosting.services["a"][0]
        service.script = Script(gates={1: gate})
        headers = {"x-synchronous": "false", "X-Amzn-SageMaker-Target-Model": "a.tar.gz"}
        token = httpx.post(f"{server.url}/invocations", json=REQUEST, headers=headers).headers["x-next-token"]
        service.journal.wait_for(lambda journal: any(line.startswith("pause") for line in journal))
        invoke(client, "b")
        invoke(client, "c")
        assert loaded(server) == ["fake", "a", "c"]
        gate.open()
        poll = {"x-starting-token": token}
        while (answer := httpx.post(f"{server.url}/invocations", headers=poll)).status_code == 202:
            pass
        assert answer.json() == {"generated_text": TEXT}

    def test_a_poll_loads_what_it_was_asked_for_while_nobody_waits(self, server: RunningServer) -> None:
        server.hosting.gates["a"] = Gate()
        headers = {"x-synchronous": "false", "X-Amzn-SageMaker-Target-Model": "a"}
        path = f"{server.url}/endpoints/e/invocations"
        answer = httpx.post(path, json=REQUEST, headers=headers)
        poll = {"x-starting-token": answer.headers["x-next-token"]}
        assert httpx.post(path, headers=poll).status_code == 202
        server.hosting.gates["a"].open()
        while (answer := httpx.post(path, headers=poll)).status_code == 202:
            pass
        assert answer.json() == {"generated_text": TEXT}

    def test_a_client_that_leaves_does_not_end_the_load_of_others(self, server: RunningServer, client: Any) -> None:
        server.hosting.gates["a"] = Gate()
        with server.connect() as leaving:
            leaving.sendall(post_bytes("/invocations", BODY.encode(), "x-amzn-sagemaker-target-model: a"))
            server.hosting.journal.wait_for(lambda lines: "load a" in lines)
        answers: list[str] = []
        thread = threading.Thread(target=lambda: answers.append(invoke(client, "a")))
        thread.start()
        server.hosting.gates["a"].open()
        thread.join()
        assert answers == [TEXT]
        assert server.hosting.journal.lines.count("load a") == 1

    def test_a_served_model_is_a_target_and_a_placeholder_is_the_default_one(
        self, server: RunningServer, client: Any
    ) -> None:
        for target in ("fake.tar.gz", "nickname", "model.tar.gz"):
            invoke(client, target)
        assert len(server.service.requests) == 3
        assert server.hosting.journal.lines == []


class TestErrors:
    def test_an_unknown_target_is_a_validation_error(self, client: Any) -> None:
        stream, attributes = client.invoke_endpoint_with_response_stream, "X-Amzn-SageMaker-Target-Model=nobody"
        for call, target in (
            (client.invoke_endpoint, {"TargetModel": "nobody.tar.gz"}),
            (stream, {"CustomAttributes": attributes}),  # the streaming operation has no parameter for it
        ):
            with pytest.raises(ClientError) as caught:
                call(EndpointName="e", Body=BODY, **target)
            answer = caught.value.response
            assert (answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]) == ("ValidationError", 400)
            assert "nobody" in answer["Error"]["Message"]

    def test_a_target_that_does_not_fit_is_the_containers_507(self, server: RunningServer, client: Any) -> None:
        server.hosting.room = 0
        with pytest.raises(ClientError) as caught:
            invoke(client, "a")
        assert caught.value.response["Error"]["Code"] == "ModelError"
        assert caught.value.response["OriginalStatusCode"] == 507
        assert json.loads(caught.value.response["OriginalMessage"])["type"] == "InsufficientMemoryException"

    def test_a_plain_call_is_told_in_lmis_shape(self, server: RunningServer) -> None:
        headers = {"X-Amzn-SageMaker-Target-Model": "nobody"}
        answer = httpx.post(f"{server.url}/invocations", json=REQUEST, headers=headers)
        assert (answer.status_code, answer.json()["type"]) == (404, "ModelNotFoundException")
        server.hosting.room = 0
        headers = {"X-Amzn-SageMaker-Target-Model": "a"}
        assert httpx.post(f"{server.url}/invocations", json=REQUEST, headers=headers).status_code == 507

    def test_a_version_that_the_target_has_not_is_not_found(self, server: RunningServer) -> None:
        headers = {"X-Amzn-SageMaker-Target-Model": "a", "model_version": "2"}
        answer = httpx.post(f"{server.url}/invocations", json=REQUEST, headers=headers)
        assert (answer.status_code, "version 2" in answer.text) == (404, True)
