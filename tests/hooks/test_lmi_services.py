"""A model.py around LMI's own handler, as LMI 0.26's examples of pre- and post-processing have it, over HTTP."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import httpx

from dragoman.config.resolve import demo_model_dir
from dragoman.errors import EngineFailed
from dragoman.server.apis.lmi_wire.parameters import LmiOptions
from tests.hooks.handling import handling, post
from tests.support.fake_service import Script
from tests.support.server_process import serve
from tests.support.tables import table

# The example's idea: the body has a password besides LMI's fields, and `parse_input` is replaced by one that checks it.
PASSWORD = """
import json
import logging
import types

from djl_python import Output
from djl_python.encode_decode import decode, encode
from djl_python.huggingface import HuggingFaceService

_service = HuggingFaceService()


def checked_input(self, inputs):
    prompts, sizes, parameters, errors = [], [], [], {}
    batch = inputs.get_batches()
    for number, item in enumerate(batch):
        try:
            body = decode(item, item.get_property("Content-Type"))
            if body.pop("password", "") != "12345":
                raise ValueError("Incorrect password!")
            given = body.pop("inputs", body)
            parameters.append(body.pop("parameters", {}))
            prompts.extend(given if isinstance(given, list) else [given])
            sizes.append(len(given) if isinstance(given, list) else 1)
            if item.contains_key("seed" if inputs.is_batch() else f"batch_{number}.seed"):
                parameters[number]["seed"] = item.get_as_string(key="seed")
        except Exception as error:
            logging.exception("request %d", number)
            errors[number] = str(error)
    return prompts, sizes, parameters, errors, batch


def handle(inputs):
    if not _service.initialized:
        _service.initialize(inputs.get_properties())
        _service.parse_input = types.MethodType(checked_input, _service)
    if inputs.is_empty():
        return None
    return _service.inference(inputs)
"""

# The other example: `prompt` in the place of `inputs`, and a function that writes every token.
FORMATTED = """
import json
import types

from djl_python.encode_decode import decode
from djl_python.huggingface import HuggingFaceService

_service = HuggingFaceService()


def write(token, first_token, last_token, details, generated_tokens):
    line = {"id": token.id, "text": token.text, "first": first_token}
    if last_token:
        line["reason"] = details["finish_reason"]
    return json.dumps(line) + "\\n"


def read(self, inputs):
    body = decode(inputs, inputs.get_property("Content-Type"))
    return [body["prompt"]], [1], [body["parameters"]], {}, inputs.get_batches()


def handle(inputs):
    if not _service.initialized:
        properties = inputs.get_properties()
        properties["output_formatter"] = write
        _service.initialize(properties)
        _service.parse_input = types.MethodType(read, _service)
    return None if inputs.is_empty() else _service.inference(inputs)
"""

PLAIN = """
from djl_python.{module} import {name}

_service = {name}()


def handle(inputs):
    if not _service.initialized:
        _service.initialize(inputs.get_properties())
    if inputs.is_empty():
        return None
    return _service.inference(inputs)
"""
HUGGING_FACE = PLAIN.format(module="huggingface", name="HuggingFaceService")

THREE = {"max_new_tokens": 3}
SERVICES = [
    ("huggingface", "HuggingFaceService"),
    ("deepspeed", "DeepSpeedService"),
    ("fastertransformer", "FasterTransformerService"),
    ("transformers_neuronx", "TransformersNeuronXService"),
    ("tensorrt_llm", "TRTLLMService"),
]


def refusal(answer: httpx.Response) -> str:
    """The text of an error in the form that dynamic batches have."""
    assert answer.status_code == 424
    body = answer.json()
    assert (body["code"], body["message"]) == (424, "invoke handler failure")
    text: str = body["error"]
    return text


class TestPreProcessing:
    def test_the_request_is_checked_before_it_is_generated_for(self, tmp_path: Path) -> None:
        with handling(tmp_path, PASSWORD) as (server, _):
            ask: dict[str, Any] = {"inputs": "hi", "parameters": THREE}
            assert refusal(post(server, ask)) == "Incorrect password!"
            answer = post(server, {**ask, "password": "12345"})
            assert answer.headers["content-type"] == "application/json"
            assert answer.json() == [{"generated_text": " Deep learning is"}]
            several = post(server, {**ask, "inputs": ["hi", "ho"], "password": "12345"})
            assert several.json() == [{"generated_text": " Deep learning is"}] * 2

    def test_it_runs_with_the_model_that_it_lies_beside(self, tmp_path: Path) -> None:
        for file in demo_model_dir().iterdir():
            shutil.copy(file, tmp_path)
        (tmp_path / "model.py").write_text(PASSWORD, encoding="utf-8")
        (tmp_path / "serving.properties").write_text(
            "engine=MPI\noption.rolling_batch=lmi-dist\noption.max_rolling_batch_size=32\noption.trust_remote_code=true\n"
            "option.max_rolling_batch_prefill_tokens=1560\noption.tensor_parallel_degree=1\noption.task=text-generation\n"
        )
        with serve(str(tmp_path), "--kv-cache-gb", "0.01") as server:
            url = f"{server.base_url}/invocations"
            ask: dict[str, Any] = {"inputs": "Large model inference is", "parameters": {"max_new_tokens": 4}}
            assert refusal(httpx.post(url, json=ask, timeout=60)) == "Incorrect password!"
            [answer] = httpx.post(url, json={**ask, "password": "12345"}, timeout=60).json()
            assert answer["generated_text"]
            other = httpx.post(f"{server.base_url}/generate", json=ask, timeout=60).json()
            assert answer == other, "the same model greedily says the same on another route"


class TestPostProcessing:
    def test_a_function_among_the_properties_writes_the_answer(self, tmp_path: Path) -> None:
        with handling(tmp_path, FORMATTED) as (server, _):
            answer = post(server, {"prompt": "hi", "parameters": {**THREE, "details": True}})
            lines = [json.loads(line) for line in answer.text.splitlines()]
            assert [line["text"] for line in lines] == [" Deep", " learning", " is"]
            assert [line["first"] for line in lines] == [True, False, False]
            assert lines[-1]["reason"] == "length"
            assert "KeyError" in refusal(post(server, {"inputs": "hi"}))


class TestTheServices:
    @table(("module", "name"), SERVICES)
    def test_each_answers_with_the_served_model(self, tmp_path: Path, module: str, name: str) -> None:
        with handling(tmp_path, PLAIN.format(module=module, name=name)) as (server, _):
            answer = post(server, {"inputs": "hi", "parameters": THREE})
            assert answer.json() == [{"generated_text": " Deep learning is"}]

    def test_what_had_no_effect_is_told(self, tmp_path: Path) -> None:
        with handling(tmp_path, HUGGING_FACE) as (server, _):
            answer = post(server, {"inputs": "hi", "parameters": {**THREE, "adapters": "a", "temperature": 2}})
            assert answer.headers["x-dragoman-ignored"] == "adapters,temperature"

    def test_the_release_decides_the_shape(self, tmp_path: Path) -> None:
        with handling(tmp_path, HUGGING_FACE, LmiOptions(lmi_version="0.26")) as (server, _):
            assert post(server, {"inputs": "hi", "parameters": THREE}).json() == {"generated_text": " Deep learning is"}

    def test_answers_stream_as_dynamic_batches_do(self, tmp_path: Path) -> None:
        options = LmiOptions(rolling_batch="disable", enable_streaming=True)
        with handling(tmp_path, HUGGING_FACE, options) as (server, _):
            answer = post(server, {"inputs": ["hi", "ho"], "parameters": THREE})
            assert answer.headers["content-type"] == "application/jsonlines"
            lines = [json.loads(line)["outputs"] for line in answer.text.splitlines()]
            assert ["".join(texts) for texts in zip(*lines, strict=True)] == [" Deep learning is"] * 2

    def test_a_stream_that_fails_says_so_in_its_last_line(self, tmp_path: Path) -> None:
        options = LmiOptions(rolling_batch="disable", enable_streaming=True)
        with handling(tmp_path, HUGGING_FACE, options) as (server, _):
            server.service.scripts["hi"] = Script(failures={1: EngineFailed("it broke")})
            *_, last = post(server, {"inputs": "hi", "parameters": THREE}).text.splitlines()
            assert json.loads(last)["code"] == 424

    @table(
        ("body", "said"),
        [
            ({"inputs": "hi", "parameters": {"top_p": 7}}, "top_p"),
            ({"inputs": 5}, "inputs"),
            ({"prompt": "hi"}, "inputs"),
            ([1], "list"),
        ],
    )
    def test_a_bad_request_is_refused_in_the_form_of_dynamic_batches(
        self, tmp_path: Path, body: Any, said: str
    ) -> None:
        with handling(tmp_path, HUGGING_FACE) as (server, _):
            assert said in refusal(post(server, body))

    def test_prompts_of_one_request_share_their_parameters(self, tmp_path: Path) -> None:
        source = HUGGING_FACE + (
            "_service.parse_input = lambda inputs: (['a', 'b'], [2], [{'seed': 1}, {'seed': 2}], {}, [inputs])\n"
        )
        with handling(tmp_path, source) as (server, _):
            assert "must have the same parameters" in refusal(post(server, {}))

    def test_without_a_model_it_says_that_there_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "model.py").write_text(HUGGING_FACE, encoding="utf-8")
        with serve(str(tmp_path)) as server:
            answer = httpx.post(f"{server.base_url}/invocations", json={"inputs": "hi"}, timeout=60)
            assert refusal(answer).startswith("there is no model to generate with")
