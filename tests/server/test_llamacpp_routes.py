"""llama.cpp's operations over HTTP: bodies in all their forms, and what comes back, whole and in streams.

The cases are those of llama.cpp's own tests of these routes, on a model whose tokens are bytes and whose text is known.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest

from dragoman.errors import EngineFailed
from dragoman.server.admission import Admission
from dragoman.server.apis import set_up_all
from dragoman.server.apis.llamacpp.api import scaled
from dragoman.server.generation.service import Service
from dragoman.server.registry import ServedAdapters, ServedModel
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.types import EngineOutput, EngineRequest
from tests.support.byte_tokenizer import BOS_ID, END_OF_TURN_ID, EOS_ID, FIM_IDS, ByteTokenizer
from tests.support.fake_engine import ABILITIES, NUM_CACHED_TOKENS, FakeEngine
from tests.support.fake_pooling import FakePooling
from tests.support.fake_service import Gate
from tests.support.patience import PATIENCE_S
from tests.support.real_dialects import fake_profile
from tests.support.running_server import RunningServer, running_server
from tests.support.tables import table

TEMPLATE = ChatTemplate(
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{{ '[a]' if add_generation_prompt }}"
)
CONTEXT = 64
ADAPTERS = ("first", "second")


class Writing(FakeEngine):
    """Writes `text`, whatever is asked; with a `failure` two bytes of it, with a `gate` one until that is open."""

    def __init__(self) -> None:
        self.text = ""
        self.failure: Exception | None = None
        self.gate: Gate | None = None
        super().__init__(
            lambda request, index: list(self.text.encode()),
            capabilities=replace(ABILITIES, max_model_len=CONTEXT, cache_salt=True, adapters=ADAPTERS),
        )

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineOutput, None]:
        """The outputs of the request."""
        count = 0
        async for output in super().generate(request):
            if self.failure is not None and count == 2:
                raise self.failure
            if self.gate is not None and count == 1:
                await self.gate.wait()
            count += 1
            yield output


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[RunningServer, Writing]]:
    engine = Writing()
    tokenizer = ByteTokenizer(adds_bos=True)
    service = Service(name="bytes", engine=engine, tokenizer=tokenizer, chat_template=TEMPLATE)
    profile = fake_profile(
        name="bytes",
        takes_adapters=True,
        adapter_names=lambda: ADAPTERS,
        end_token_ids=tokenizer.eos_token_ids,
        max_model_len=CONTEXT,
        abilities=frozenset({"chat", "insert"}),
    )
    vectors = FakePooling()
    embeds = fake_profile(name="vectors", pooling=vectors)
    adapters = ServedAdapters(engine, None, {name: f"/{name}.gguf" for name in ADAPTERS})
    with running_server(dialects=set_up_all(profile)) as server:
        server.registry.retire(server.registry.models[0])
        dialects = set_up_all(profile)
        model = ServedModel("bytes", service, engine, dialects, Admission("bytes", max_running=2), profile=profile)
        server.registry.add(replace(model, adapters=adapters))
        server.registry.add(
            ServedModel("vectors", service, engine, set_up_all(embeds), Admission("vectors"), pooling=vectors)
        )
        yield server, engine


@pytest.fixture
def engine(served: tuple[RunningServer, Writing]) -> Writing:
    served[1].text = "Once there\nwas a cat."
    served[1].failure = served[1].gate = None
    served[1].requests.clear()
    return served[1]


@pytest.fixture
def client(served: tuple[RunningServer, Writing]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served[0].url, timeout=PATIENCE_S) as client:
        yield client


def complete(client: httpx.Client, path: str = "/completion", **body: Any) -> Any:
    """The answer to a body."""
    answer = client.post(path, json={"prompt": "Hi", **body} if path != "/infill" else body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(client: httpx.Client, **body: Any) -> list[Any]:
    """The events of a stream."""
    answer = client.post("/completion", json={"prompt": "Hi", "stream": True, **body})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream")
    lines = answer.text.split("\n\n")
    assert lines.pop() == ""
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def message_of(client: httpx.Client, path: str, body: Any) -> tuple[int, str, str]:
    """Status, type and message of an error, of which the code is the status."""
    answer = client.post(path, json=body)
    error = answer.json()["error"]
    assert error["code"] == answer.status_code
    return answer.status_code, error["type"], error["message"]


# --- /completion ------------------------------------------------------------------------------------------------------


def test_an_answer_tells_how_it_was_made_and_why_it_ended(client: httpx.Client, engine: Writing) -> None:
    told = complete(client, n_predict=5, seed=42)
    assert (told["content"], told["tokens"], told["stop"], told["index"]) == ("Once ", [], True, 0)
    assert (told["stop_type"], told["stopping_word"], told["truncated"]) == ("limit", "", False)
    assert (told["tokens_predicted"], told["tokens_evaluated"], told["tokens_cached"]) == (5, 3, NUM_CACHED_TOKENS)
    assert (told["prompt"], told["model"], told["has_new_line"]) == ("<s>Hi", "bytes", False)
    settings = told["generation_settings"]
    assert (settings["seed"], settings["n_predict"], settings["temperature"], settings["logit_bias"]) == (
        42,
        5,
        0.8,
        [],
    )
    assert {"adaptive_target", "adaptive_decay", "mirostat", "dry_base", "lora"} <= settings.keys()
    timings = told["timings"]
    assert (timings["cache_n"], timings["prompt_n"], timings["predicted_n"]) == (3, 0, 5)
    assert timings["predicted_ms"] >= 0


def test_tokens_are_told_where_they_are_asked_for(client: httpx.Client, engine: Writing) -> None:
    told = complete(client, return_tokens=True)
    assert told["tokens"] == [*engine.text.encode(), EOS_ID]
    assert (told["stop_type"], told["has_new_line"]) == ("eos", True)


def test_a_stream_has_the_same_text_and_ends_with_the_same_object(client: httpx.Client, engine: Writing) -> None:
    *pieces, last = streamed(client, seed=1)
    whole = complete(client, seed=1)
    assert "".join(piece["content"] for piece in pieces) == whole["content"] == engine.text
    assert all(piece["stop"] is False and piece["tokens"] for piece in pieces)
    assert [token for piece in pieces for token in piece["tokens"]] == list(engine.text.encode())
    assert pieces[-1]["tokens_predicted"] == len(engine.text)
    assert all("timings" not in piece for piece in pieces)
    for one in (last, whole):
        del one["timings"], one["generation_settings"]["stream"]
    assert last == {**whole, "content": ""}
    assert all("timings" in one for one in streamed(client, timings_per_token=True))


def test_a_stop_string_ends_the_answer_and_is_named(client: httpx.Client, engine: Writing) -> None:
    for stop in ("there", ["never", "there"]):
        told = complete(client, stop=stop)
        assert (told["content"], told["stop_type"], told["stopping_word"]) == ("Once ", "word", "there")
    assert "".join(piece["content"] for piece in streamed(client, stop=["there"])) == "Once "


def test_without_a_limit_an_answer_fills_the_context(client: httpx.Client, engine: Writing) -> None:
    told = complete(client, ignore_eos=True)
    assert (told["tokens_predicted"], told["truncated"], told["stop_type"]) == (CONTEXT - 3, True, "limit")
    bias = told["generation_settings"]["logit_bias"]
    assert bias == [{"token": token_id, "bias": None} for token_id in (EOS_ID, END_OF_TURN_ID)]


def test_a_prompt_that_is_too_long_is_refused_with_both_sizes(client: httpx.Client, engine: Writing) -> None:
    answer = client.post("/completion", json={"prompt": "a" * 99, "cache_prompt": False})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "exceed_context_size_error")
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (100, CONTEXT)
    assert "exceeds the available context size" in error["message"]


def test_nothing_is_generated_where_nothing_is_wanted(client: httpx.Client, engine: Writing) -> None:
    told = complete(client, n_predict=0)
    assert (told["content"], told["tokens_predicted"], told["stop_type"]) == ("", 0, "limit")
    assert engine.requests[-1].max_tokens == 0


def test_several_prompts_have_an_answer_each(client: httpx.Client, engine: Writing) -> None:
    prompts = [[BOS_ID, 72, 105], "Hi", {"prompt_string": "Hi"}, [72, "i"]]
    told = complete(client, prompt=prompts, n_predict=4)
    assert [one["index"] for one in told] == [0, 1, 2, 3]
    assert [one["content"] for one in told] == ["Once"] * 4
    assert [one["prompt"] for one in told] == ["<s>Hi"] * 3 + ["Hi"]
    assert complete(client, prompt=["Hi"], n_predict=4)[0]["content"] == "Once"
    told = complete(client, prompt=["a", "b"], n_cmpl=2, n_predict=4)
    assert [one["index"] for one in told] == [0, 1, 2, 3]
    ends = [one["index"] for one in streamed(client, prompt=["a", "b"], n_cmpl=2, n_predict=4) if one["stop"]]
    assert sorted(ends) == [0, 1, 2, 3]


def test_texts_and_tokens_in_one_prompt_follow_each_other(client: httpx.Client, engine: Writing) -> None:
    for parts in ([1, 2, "ab", 3, "c"], ["ab", 3]):
        complete(client, prompt=parts)
    assert [request.prompt_ids for request in engine.requests] == [(1, 2, 97, 98, 3, 99), (BOS_ID, 97, 98, 3)]
    status, _, message = message_of(client, "/completion", {"prompt": [1, 999_999]})
    assert (status, message.startswith("prompt holds token id 999999")) == (400, True)


def test_an_answer_consists_of_the_fields_that_are_asked_for(client: httpx.Client, engine: Writing) -> None:
    fields = ["content", "generation_settings/n_predict", "prompt", "nothing", "content/deeper"]
    told = complete(client, n_predict=4, response_fields=fields)
    assert told == {"content": "Once", "generation_settings/n_predict": 4, "prompt": "<s>Hi"}
    assert complete(client, response_fields=[""]) == {}
    assert "generation_settings" in complete(client, response_fields=[])
    assert streamed(client, n_predict=4, response_fields=["stop_type"])[-1] == {"stop_type": "limit"}


def test_probabilities_are_told_token_by_token(client: httpx.Client, engine: Writing) -> None:
    told = complete(client, n_probs=3, n_predict=5)["completion_probabilities"]
    assert [one["id"] for one in told] == list(b"Once ")
    for one in told:
        assert one["bytes"] == [one["id"]]
        assert one["token"] == chr(one["id"])
        assert len(one["top_logprobs"]) == 3
        assert one["top_logprobs"][0]["logprob"] == one["logprob"] <= 0
    pieces = [one for one in streamed(client, n_probs=3, n_predict=5, stop=["e t"]) if not one["stop"]]
    assert [token for one in pieces for token in one["completion_probabilities"]] == told
    assert [len(one["completion_probabilities"]) for one in pieces] == [1] * 5


def test_texts_and_tokens_are_biased(client: httpx.Client, engine: Writing) -> None:
    complete(client, logit_bias=[[65, 1.5], ["BC", -2], ["A", 9]])
    assert engine.requests[-1].sampling.logit_bias == {65: 1.5, 66: -2.0, 67: -2.0}
    complete(client, logit_bias={"BC": False, "65": 1})
    bias = engine.requests[-1].sampling.logit_bias
    assert (bias[65], bias[66] < -1e6, bias[67] < -1e6) == (1.0, True, True)


@table(
    ("limits", "text", "expected"),
    [
        ({"n_indent": 2}, "  a\n  b\n c\n  d", "  a\n  b\n "),
        ({"n_indent": 2}, "a\n\t b\nc", "a\n\t b\n"),
        ({"n_indent": 2}, "a\n\n  b", "a\n"),
        ({"n_indent": 0}, "a\nb", "a\nb"),
        ({"t_max_predict_ms": 60_000}, "a\nb\nc", "a\nb\nc"),
        ({"n_indent": 2, "stop": ["b\nc"]}, "a\n  b\nc", "a\n  b\n"),
        ({"n_indent": 2, "stop": ["never"]}, "a\n  b\nc", "a\n  b\n"),
    ],
)
def test_an_answer_ends_by_its_lines(
    client: httpx.Client, engine: Writing, limits: dict[str, Any], text: str, expected: str
) -> None:
    engine.text = text
    told = complete(client, **limits)
    assert told["content"] == expected
    assert told["stop_type"] == ("eos" if expected == text else "limit")
    assert "".join(one["content"] for one in streamed(client, **limits)) == expected


def test_a_late_line_is_the_last(client: httpx.Client, engine: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(1000))
    monkeypatch.setattr("dragoman.server.generation.text_until_stop.perf_counter", lambda: float(next(times)))
    engine.text = "a\nb\nc\nd"
    told = complete(client, t_max_predict_ms=7_000)
    assert (told["content"], told["stop_type"]) == ("a\nb\nc\n", "limit")


def test_a_cached_prompt_is_not_shared_where_the_client_forbids_it(client: httpx.Client, engine: Writing) -> None:
    for _ in range(2):
        complete(client, cache_prompt=False)
    complete(client)
    first, second, third = engine.requests
    salts = [first.cache_salt, second.cache_salt, third.cache_salt]
    assert (len(set(salts)), salts[2]) == (3, "")


def test_a_failure_inside_a_stream_is_its_last_event(client: httpx.Client, engine: Writing) -> None:
    engine.failure = EngineFailed("it broke")
    *pieces, last = streamed(client)
    assert [piece["content"] for piece in pieces] == ["O", "n"]
    assert last == {"error": {"code": 500, "message": "it broke", "type": "server_error"}}


# --- /infill ----------------------------------------------------------------------------------------------------------


def test_a_gap_is_filled_between_the_models_marks(client: httpx.Client, engine: Writing) -> None:
    told = complete(client, "/infill", input_prefix="ab", input_suffix="cd", prompt=" x", n_predict=4)
    ids = engine.requests[-1].prompt_ids
    assert ids == (BOS_ID, FIM_IDS.prefix, *b"ab x", FIM_IDS.suffix, *b"cd", FIM_IDS.middle)
    assert told["content"] == "Once"


def test_other_files_come_first_and_give_way_first(client: httpx.Client, engine: Writing) -> None:
    files = [{"filename": "a", "text": "A" * 9}, {"text": "B" * 9}]
    body = {"input_prefix": "ab", "input_suffix": "cd", "n_predict": 4}
    complete(client, "/infill", input_extra=files, **body)
    ids = engine.requests[-1].prompt_ids
    assert len(ids) == CONTEXT - 4
    assert bytes(ids[1:-7]).decode().endswith("AA\n\n--- snippet ---\n\nBBBBBBBBB")
    complete(
        client,
        "/infill",
        input_extra=files,
        **{**body, "input_prefix": "x" * 90 + "ab", "input_suffix": "cd" + "y" * 90},
    )
    ids = engine.requests[-1].prompt_ids
    code = bytes(one for one in ids if one < 256).decode()
    assert (len(ids), code) == (CONTEXT - 4, "x" * 40 + "ab" + "cd" + "y" * 12)


# --- everything else --------------------------------------------------------------------------------------------------


def test_texts_become_tokens_and_tokens_texts(client: httpx.Client, engine: Writing) -> None:
    def tokens(**body: Any) -> Any:
        return client.post("/tokenize", json=body).json()

    assert tokens(content="Hé") == {"tokens": list("Hé".encode())}
    assert tokens(content="H", add_special=True) == {"tokens": [BOS_ID, 72]}
    assert tokens(content="H", add_special=True, parse_special=False) == {"tokens": [BOS_ID, 72]}
    pieces = [{"id": 72, "piece": "H"}, {"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]
    assert tokens(content="Hé", with_pieces=True) == {"tokens": pieces}
    assert client.post("/detokenize", json={"tokens": [72, 105]}).json()["content"] == "Hi"


@table(
    ("more", "expected"),
    [({}, "[user]Hi[a]"), ({"add_generation_prompt": False}, "[user]Hi"), ({"temperature": 1}, "[user]Hi[a]")],
)
def test_a_conversation_is_rendered(client: httpx.Client, engine: Writing, more: dict[str, Any], expected: str) -> None:
    answer = client.post("/apply-template", json={"messages": [{"role": "user", "content": "Hi"}], **more})
    assert answer.json() == {"prompt": expected}
    assert answer.headers.get("x-dragoman-ignored") == ("temperature" if "temperature" in more else None)


def test_the_properties_tell_what_holds_by_default(client: httpx.Client, engine: Writing) -> None:
    told = client.get("/props?model=bytes").json()
    defaults = told["default_generation_settings"]
    assert (defaults["n_ctx"], defaults["params"]["top_k"], told["total_slots"]) == (CONTEXT, 40, 2)
    assert (told["chat_template"], told["modalities"]) == (
        TEMPLATE.sources["default"],
        {"vision": False, "audio": False},
    )
    assert (told["bos_token"], told["eos_token"], told["model_alias"]) == ("<s>", "</s>", "bytes")
    assert message_of(client, "/props", {}) == (
        501,
        "not_supported_error",
        "properties cannot be changed by calls: start the server with other options",
    )
    assert client.get("/props?model=other").status_code == 404


def test_a_slot_is_in_use_while_a_sequence_is_computed(client: httpx.Client, engine: Writing) -> None:
    idle = client.get("/slots").json()
    assert [(one["id"], one["n_ctx"], one["is_processing"]) for one in idle] == [
        (0, CONTEXT, False),
        (1, CONTEXT, False),
    ]
    engine.gate = Gate()
    with client.stream("POST", "/completion", json={"prompt": "Hi", "stream": True, "n_predict": 9, "n_cmpl": 2}):
        busy = client.get("/slots").json()
        assert [one["is_processing"] for one in busy] == [True, True]
        assert busy[0]["next_token"] == {"has_next_token": True, "n_remain": 8, "n_decoded": 1}
        refused = client.get("/slots?fail_on_no_slot=1")
        assert (refused.status_code, refused.json()["error"]["type"]) == (503, "unavailable_error")
        engine.gate.open()
    deadline_s = time.monotonic() + PATIENCE_S  # the server learns in its time that nobody reads the answer
    while client.get("/slots?fail_on_no_slot=1").status_code != 200:
        assert time.monotonic() < deadline_s
    assert client.post("/slots/0?action=erase").status_code == 501


def test_slots_are_told_to_nobody_where_the_operator_says_so(served: tuple[RunningServer, Writing]) -> None:
    server = served[0]
    profile = fake_profile(name="silent", settings={"slots": False})
    model = server.registry.models[0]
    server.registry.add(replace(model, name="silent", dialects=set_up_all(profile), profile=profile, adapters=None))
    with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as client:
        answer = client.get("/slots?model=silent")
        assert (answer.status_code, answer.json()["error"]["type"]) == (501, "not_supported_error")
        assert [client.get(f"/props?model={name}").json()["endpoint_slots"] for name in ("silent", "bytes")] == [
            False,
            True,
        ]
    server.registry.retire(server.registry.find("silent"))


def test_the_adapter_that_is_set_holds_where_calls_name_none(client: httpx.Client, engine: Writing) -> None:
    def applied(**body: Any) -> str | None:
        complete(client, **body)
        return engine.requests[-1].adapter

    listed = [{"id": 0, "path": "/first.gguf", "scale": 0.0}, {"id": 1, "path": "/second.gguf", "scale": 0.0}]
    assert client.get("/lora-adapters").json() == listed
    assert (applied(), applied(lora=[{"id": 0, "scale": 1.0}])) == (None, "first")
    assert client.post("/lora-adapters", json=[{"id": 1, "scale": 1.0}]).json() == {"success": True}
    assert [one["scale"] for one in client.get("/lora-adapters").json()] == [0.0, 1.0]
    assert (applied(), applied(lora=[]), applied(lora=[{"id": 0}])) == ("second", None, "first")
    assert message_of(client, "/lora-adapters", [{"id": 1, "scale": 0.5}])[2].startswith("[0].scale must be 0 or 1")
    assert message_of(client, "/lora-adapters", {"id": 1})[2].startswith("the body must be an array")
    assert client.post("/lora-adapters", json=[]).json() == {"success": True}
    assert applied() is None


@table("path", ["/embedding", "/embeddings"])
def test_vectors_are_lists_of_one(client: httpx.Client, engine: Writing, path: str) -> None:
    body = {"model": "vectors", "content": ["one two", "three"]}
    told = client.post(path, json=body).json()
    assert [one["index"] for one in told] == [0, 1]
    for one in told:
        [vector] = one["embedding"]
        assert sum(value * value for value in vector) == pytest.approx(1.0, abs=1e-6)
    raw = client.post(path, json={**body, "embd_normalize": -1}).json()
    assert raw[0]["embedding"] != told[0]["embedding"]
    assert client.post(path, json={"model": "vectors", "input": "three"}).json()[0]["embedding"] == told[1]["embedding"]
    assert message_of(client, path, {"model": "vectors"})[2].startswith("content is missing")
    assert message_of(client, path, {"content": "x"})[:2] == (501, "not_supported_error")


@table(
    ("kind", "expected"),
    [
        (-1, [3.0, -4.0]),
        (0, [24570.0, -32760.0]),
        (1, [3 / 7, -4 / 7]),
        (2, [0.6, -0.8]),
        (3, [3 / 91 ** (1 / 3), -4 / 91 ** (1 / 3)]),
    ],
)
def test_vectors_are_scaled_as_asked(kind: int, expected: list[float]) -> None:
    assert scaled(np.array([3.0, -4.0], np.float32), kind).tolist() == pytest.approx(expected, rel=1e-6)
    assert scaled(np.zeros(2, np.float32), kind).tolist() == [0.0, 0.0]
