"""The bytes of streams and errors, however they are cut and whoever wrote them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.engine.remote.profile import KINDS, TGI, UNKNOWN, Kind, Profile, kind_of
from dragoman.engine.remote.wire import (
    Ask,
    EventReader,
    body,
    chunk_error,
    chunks,
    client_error,
    error_text,
    prompt_body,
)
from dragoman.errors import CapacityError, InvalidParameter, InvalidRequest
from dragoman.types import EngineRequest, Grammar, SamplingParams

TEXTS = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1, max_size=8), max_size=6)


@given(TEXTS, st.sampled_from(["\n", "\r\n"]), st.data())
def test_events_are_the_same_however_the_stream_is_cut(texts: list[str], line: str, data: st.DataObject) -> None:
    stream = "".join(f"data: {text}{line}{line}: a comment{line}{line}" for text in texts).encode()
    reader, found, position = EventReader(), [], 0
    while position < len(stream):
        size = data.draw(st.integers(1, 9))
        found += reader.push(stream[position : position + size])
        position += size
    assert found == [text.encode() for text in texts]


def test_an_event_may_have_several_lines_and_no_blank_after_the_colon() -> None:
    stream = b'event: message\ndata:{"choices":\ndata: []}\nid: 7\n\n'
    (event,) = EventReader().push(stream)
    assert chunks.decode(event).choices == []


ERRORS: dict[str, tuple[Any, str]] = {
    "OpenAI": ({"error": {"message": "no\nway", "type": "x"}}, "no way"),
    "TGI": ({"error": "no way", "error_type": "validation"}, "no way"),
    "older vLLM": ({"object": "error", "message": "no way"}, "no way"),
    "FastAPI": ({"detail": "no way"}, "no way"),
    "a list of details": ({"detail": [{"msg": "no"}]}, '[{"msg":"no"}]'),
    "nothing": ({}, "{}"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_of_every_server_are_one_line(name: str) -> None:
    content, expected = ERRORS[name]
    assert error_text(json.dumps(content).encode()) == expected


def test_an_error_that_is_no_json_is_its_text() -> None:
    assert error_text(b"<html>\n502  Bad Gateway</html>") == "<html> 502 Bad Gateway</html>"
    assert error_text(b"") == "no reason was told"
    assert error_text(b"[" * 100_000) != ""


def test_client_errors_keep_their_parameter_and_their_kind() -> None:
    error = client_error(b'{"error": {"message": "top_p must be less", "param": "top_p"}}', "http://a/v1")
    assert isinstance(error, InvalidParameter)
    assert (error.param, error.message) == ("top_p", "top_p must be less (said by http://a/v1)")
    assert type(client_error(b"no", "a")) is InvalidRequest
    for content in (b'{"error": {"message": "x", "code": "context_length_exceeded"}}', b"maximum context length is 4"):
        assert isinstance(client_error(content, "a"), CapacityError)


def test_an_error_in_a_stream_is_found_in_both_forms() -> None:
    assert chunk_error(chunks.decode(b'{"error": {"message": "gone"}}')) == "gone"
    assert chunk_error(chunks.decode(b'{"object": "error", "message": "gone"}')) == "gone"
    assert chunk_error(chunks.decode(b'{"object": "text_completion", "choices": []}')) is None


# --- bodies -----------------------------------------------------------------------------------------------------------


def sent(kind: Kind, *, by_ids: bool = True, **values: Any) -> dict[str, Any]:
    """The body for a request, for a server of that kind that has all that its row says."""
    names = dict(kind.names)
    grammars = {name: path for way in reversed(kind.grammars) for name, path in way.items()}
    sampling = SamplingParams(**values)
    request = EngineRequest("r", (1, 2), sampling, 4, seed=2**64 - 1, eos_token_ids=frozenset({9}))
    ask = Ask((1, 2), request, 1, request.seed, sampling.logprobs, by_ids=by_ids)
    found: dict[str, Any] = msgspec.json.decode(body(ask, Profile("m", kind, names=names, grammars=grammars)))
    return found


@pytest.mark.parametrize(("num_top", "asked"), [(None, {}), (0, {"prompt_logprobs": 0}), (3, {"prompt_logprobs": 3})])
def test_a_prompt_is_read_with_its_salt_and_as_many_candidates_as_are_wanted(
    num_top: int | None, asked: dict[str, int]
) -> None:
    request = EngineRequest("r", (1, 2), SamplingParams(), 0, seed=1, cache_salt="pepper")
    found = msgspec.json.decode(prompt_body(Ask((1, 2), request, 1, 1), Profile("m", KINDS[1]), num_top))
    read = {"model": "m", "prompt": [1, 2], "max_tokens": 1, "stream": False, "temperature": 0, "cache_salt": "pepper"}
    assert found == read | asked


@pytest.mark.parametrize("kind", [*KINDS, TGI, UNKNOWN], ids=lambda kind: kind.name)
def test_bodies_name_every_filter_so_that_no_servers_defaults_apply(kind: Kind) -> None:
    found = sent(kind)
    assert found["stream"] is True
    assert found["temperature"] == found["top_p"] == 1.0
    assert found["seed"] <= kind.max_seed
    neutral = {"top_k": -1, "min_p": 0.0, "typical_p": 1.0, "repetition_penalty": 1.0}
    for name, value in neutral.items():
        assert found.get(kind.names.get(name, "-")) == (value if name in kind.names else None)
    assert not {"presence_penalty", "logit_bias", "min_tokens", "n", "logprobs"} - {"logprobs"} & set(found)


def test_parameters_go_by_the_names_that_a_server_has_for_them() -> None:
    kinds = {kind.name: kind for kind in KINDS}
    assert sent(kinds["llama.cpp"], repetition_penalty=1.5)["repeat_penalty"] == 1.5
    assert sent(kinds["vLLM"], logit_bias={7: 2.0})["logit_bias"] == {"7": 2.0}
    assert sent(kinds["vLLM"])["stop_token_ids"] == [9]
    assert "stop_token_ids" not in sent(kinds["vLLM"], ignore_eos=True)
    assert sent(kinds["vLLM"], stop_token_ids=(3,), ignore_eos=True)["stop_token_ids"] == [3]
    assert sent(kinds["llama.cpp"])["logprobs"] == 1, "its token ids come with them"
    assert sent(kinds["vLLM"])["return_token_ids"] is True
    assert "return_token_ids" not in sent(kinds["vLLM"], by_ids=False)


def test_grammars_go_where_a_server_wants_them() -> None:
    kinds = {kind.name: kind for kind in KINDS}
    schema = Grammar("json_schema", '{"type": "object"}')
    assert sent(kinds["vLLM"], grammar=schema)["structured_outputs"] == {"json": {"type": "object"}}
    assert sent(kinds["llama.cpp"], grammar=schema)["json_schema"] == {"type": "object"}
    assert sent(kinds["SGLang"], grammar=schema)["json_schema"] == '{"type": "object"}'
    assert sent(kinds["vLLM"], grammar=Grammar("choice", '["a"]'))["structured_outputs"] == {"choice": ["a"]}
    assert sent(kinds["vLLM"], grammar=Grammar("json_object"))["structured_outputs"] == {"json_object": True}


def test_kinds_are_known_by_the_owners_of_their_models() -> None:
    owners = {"dragoman": "dragoman", "vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp", "OVMS": "OVMS"}
    assert {owner: kind_of(owner, "m").name for owner in owners} == owners
    assert {owner: kind_of(owner, owner).name for owner in owners} == owners, "a model may be called as its server"
    assert kind_of("org/model", "org/model") is kind_of("vllm-org/model", "vllm-org/model") is TGI
    assert kind_of("", "m") is kind_of("openai", "m") is UNKNOWN
