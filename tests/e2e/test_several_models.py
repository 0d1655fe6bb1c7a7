"""Two models in one process: the demo model under two names, each with the options of its own directory."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dragoman.config.resolve import demo_model_dir
from tests.support.aws import aws_runtime
from tests.support.server_process import ServerProcess, serve

PROMPT = "What is deep learning?"
BODY = {"inputs": PROMPT, "parameters": {"max_new_tokens": 8}}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store as SageMaker mounts it."""
    directory = tmp_path_factory.mktemp("store")
    own = {
        "plain": "option.max_model_len=256\noption.kv_cache_gb=0.02\n",
        "tgi": "option.tgi_compat=true\noption.max_model_len=128\njob_queue_size=0\noption.max_rolling_batch_size=1\n"
        "option.served_model_name=alias\npredict_timeout=0.001\n",
    }
    for name, options in own.items():
        (directory / name).mkdir()
        for file in demo_model_dir().iterdir():
            if file.is_file():
                shutil.copy(file, directory / name / file.name)
        (directory / name / "serving.properties").write_text(options, encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[ServerProcess]:
    """The store served; `slow` is the second model without its time limit, in a directory of options only."""
    slow = store.parent / "options-only"
    slow.mkdir(exist_ok=True)
    (slow / "serving.properties").write_text(f"option.model_id={store}/tgi\njob_queue_size=0\n", encoding="utf-8")
    environ = {
        "SERVING_LOAD_MODELS": f"plain::Python={store}/plain,tgi:1={store}/tgi,slow={slow}",
        "OPTION_MAX_ROLLING_BATCH_SIZE": "1",
        "OPTION_DTYPE": "f32",  # so that equal weights give equal words
    }
    with serve(environ=environ) as running:
        yield running


def post(server: ServerProcess, path: str, body: Any = BODY, **headers: str) -> httpx.Response:
    return httpx.post(server.base_url + path, json=body, headers=headers, timeout=60)


def answer_once_free(server: ServerProcess, path: str) -> httpx.Response:
    """The answer once the abort of the stream before it has given the only place back."""
    while (answer := post(server, path)).status_code == 503:
        pass
    return answer


def test_all_are_listed_and_healthy_and_have_their_own_lengths(server: ServerProcess) -> None:
    models = httpx.get(f"{server.base_url}/models", timeout=60).json()["models"]
    assert [(model["modelName"], model.get("version")) for model in models] == [
        ("plain", None), ("tgi", "1"), ("slow", None),
    ]  # fmt: skip
    assert set(httpx.get(f"{server.base_url}/ping", timeout=60).json()) == {"plain", "tgi", "slow"}
    listed = httpx.get(f"{server.base_url}/v1/models", timeout=60).json()["data"]
    lengths = {model["id"]: model["max_model_len"] for model in listed}
    assert lengths == {"plain": 256, "tgi": 128, "alias": 128, "slow": 2048}


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/predictions/slow", {}),
        ("/models/slow/invoke", {}),
        ("/invocations?model_name=slow", {}),
        ("/invocations", {"model_name": "slow"}),
        ("/invocations", {"x-amzn-sagemaker-custom-attributes": "model_name=slow"}),
        ("/endpoints/slow/invocations", {}),
    ],
)
def test_every_way_to_name_a_model_reaches_it(server: ServerProcess, path: str, headers: dict[str, str]) -> None:
    """The prompt fits into 2048 tokens and into no other model's context."""
    answer = post(server, path, {"inputs": PROMPT * 60, "parameters": {"max_new_tokens": 2}}, **headers)
    assert (answer.status_code, list(answer.json())) == (200, ["generated_text"])
    default = post(server, "/invocations", {"inputs": PROMPT * 60, "parameters": {"max_new_tokens": 2}})
    assert (default.status_code, "256" in default.json()["error"]) == (424, True)


def test_a_version_is_asked_for_in_path_or_query(server: ServerProcess) -> None:
    for path in ("/predictions/tgi/1", "/predictions/tgi?model_version=1"):
        assert isinstance(post(server, path, {"inputs": 7}).json(), dict)
        assert post(server, path, {"inputs": 7}).status_code == 424
    for path in ("/predictions/tgi/2", "/predictions/tgi?model_version=2", "/predictions/plain?model_version=1"):
        answer = post(server, path)
        assert (answer.status_code, answer.json()["type"]) == (404, "ModelNotFoundException")


def test_an_openai_client_names_models_in_the_body(server: ServerProcess) -> None:
    with openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0) as client:
        for name in ("plain", "slow"):
            assert client.completions.create(model=name, prompt=PROMPT, max_tokens=2).model == name
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="nobody", prompt=PROMPT)


def test_models_with_the_same_weights_say_the_same(server: ServerProcess) -> None:
    answers = {post(server, f"/predictions/{name}").json()["generated_text"] for name in ("plain", "slow")}
    assert len(answers) == 1
    assert answers != {""}


def test_a_request_over_its_models_time_is_answered_in_its_models_shape(server: ServerProcess) -> None:
    answer = post(server, "/predictions/alias", {"inputs": PROMPT, "parameters": {"max_new_tokens": 100}})
    assert answer.status_code == 424
    assert "0.001 s" in answer.json()["error"]
    assert answer.json()["error_type"] == "generation", "tgi_compat is this model's own option"
    assert post(server, "/predictions/plain").status_code == 200


def test_a_full_queue_is_one_models_own(server: ServerProcess) -> None:
    """One stream holds the only place of `slow`, which has no queue."""
    long = {"inputs": PROMPT, "parameters": {"max_new_tokens": 1500, "ignore_eos_token": True}, "stream": True}
    with httpx.stream("POST", f"{server.base_url}/predictions/slow", json=long, timeout=60) as stream:
        lines = stream.iter_lines()  # held: a dropped iterator closes the stream
        next(lines)
        refused = post(server, "/predictions/slow")
        assert (refused.status_code, refused.json()["type"]) == (503, "WlmCapacityException")
        assert int(refused.headers["retry-after"]) >= 1
        assert post(server, "/predictions/plain").status_code == 200
    assert answer_once_free(server, "/predictions/slow").status_code == 200


def test_a_client_that_never_reads_costs_nobody_else(server: ServerProcess) -> None:
    body = json.dumps(
        {"inputs": PROMPT, "parameters": {"max_new_tokens": 200, "details": True}, "stream": True}
    ).encode()
    head = f"POST /predictions/plain HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    port = int(server.base_url.rpartition(":")[2])
    sockets = []
    try:
        for _ in range(3):
            silent = socket.socket()
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            silent.connect(("127.0.0.1", port))
            silent.sendall(head + body)
            sockets.append(silent)
            assert silent.recv(12, socket.MSG_PEEK) == b"HTTP/1.1 200"  # left where it is
        assert post(server, "/predictions/plain").status_code == 200
        assert post(server, "/predictions/slow").status_code == 200
    finally:
        for silent in sockets:
            silent.close()


def test_the_cache_is_split_and_an_own_size_is_kept(server: ServerProcess) -> None:
    text = httpx.get(f"{server.base_url}/metrics", timeout=60).text
    assert httpx.get(f"{server.base_url}/server/metrics", timeout=60).headers["content-type"].startswith("text/plain")
    blocks = {
        sample.labels["model"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "dragoman_kv_blocks"
    }
    assert set(blocks) == {"plain", "tgi", "slow"}
    assert all(count >= 1 for count in blocks.values())
    assert blocks["plain"] > blocks["tgi"], "0.02 GiB against one sequence of 128 tokens"


def test_awss_client_reaches_a_model_by_its_endpoints_name(server: ServerProcess) -> None:
    with aws_runtime(server.base_url) as client:
        answer = client.invoke_endpoint_with_response_stream(
            EndpointName="slow", ContentType="application/json", Body=json.dumps({**BODY, "stream": True})
        )
        content = b"".join(event["PayloadPart"]["Bytes"] for event in answer["Body"])
    whole = post(server, "/predictions/slow").json()["generated_text"]
    assert content.endswith(b"\n")
    assert json.loads(content.splitlines()[-1])["generated_text"] == whole


def test_the_first_words_say_what_is_served(server: ServerProcess, store: Path) -> None:
    text = "".join(server.output)
    assert "serves plain at" in text
    assert "  and tgi, slow (" in text
    assert "slow: warming up" in text
