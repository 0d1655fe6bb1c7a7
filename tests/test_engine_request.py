"""A request to an engine is data: what is written as JSON or msgpack and read again is the same request."""

from __future__ import annotations

from types import ModuleType
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.types import (
    EngineRequest,
    Grammar,
    Picture,
    PictureSpan,
    RepetitionDetection,
    SamplingParams,
    StopStrings,
    Thinking,
)

texts = st.text(st.characters(codec="utf-8"), max_size=12)
token_ids = st.integers(0, 300_000)
numbers = st.floats(-1e6, 1e6)
counts = st.integers(0, 64)

grammars = st.builds(
    Grammar,
    kind=st.sampled_from(["json_schema", "json_object", "regex", "lark", "choice"]),
    source=texts,
    frame=texts,
    covers_tool_calls=st.booleans(),
    needs_frame=st.booleans(),
)
repetitions = st.builds(RepetitionDetection, counts, counts, counts)
ids = st.lists(token_ids, max_size=4).map(tuple)
thinking = st.builds(
    Thinking,
    begin=texts,
    ends=st.lists(texts, max_size=3).map(tuple),
    closing_ids=ids,
    is_open=st.booleans(),
    recurs=st.booleans(),
    budget=st.one_of(st.none(), counts),
    repetition=st.one_of(st.none(), repetitions),
    reclosing_ids=ids,
)
samplings = st.builds(
    SamplingParams,
    temperature=numbers,
    top_k=counts,
    top_p=numbers,
    typical_p=numbers,
    repetition_penalty=numbers,
    logit_bias=st.dictionaries(token_ids, numbers, max_size=4),
    bad_words=st.lists(texts, max_size=3).map(tuple),
    allowed_token_ids=st.one_of(st.none(), st.lists(token_ids, max_size=4).map(tuple)),
    stop_token_ids=st.lists(token_ids, max_size=4).map(tuple),
    seed=st.one_of(st.none(), st.integers(0, 2**64 - 1)),
    n=counts,
    best_of=st.one_of(st.none(), counts),
    num_beams=counts,
    early_stopping=st.sampled_from([True, False, "never"]),
    logprobs=st.one_of(st.none(), counts),
    grammar=st.one_of(st.none(), grammars),
    assistant_confidence_threshold=st.one_of(st.none(), numbers),
    thinking_token_budget=st.one_of(st.none(), counts),
    repetition_detection=st.one_of(st.none(), repetitions),
)
pictures = st.builds(
    PictureSpan,
    picture=st.builds(Picture, width=counts, height=counts, rgb=st.binary(max_size=12), digest=texts),
    begin=counts,
    length=counts,
    detail=st.sampled_from(["auto", "low", "high"]),
)
requests = st.builds(
    EngineRequest,
    request_id=texts,
    prompt_ids=st.lists(token_ids, max_size=9).map(tuple),
    sampling=samplings,
    max_tokens=counts,
    seed=st.integers(0, 2**64 - 1),
    eos_token_ids=st.frozensets(token_ids, max_size=3),
    bad_word_ids=st.lists(st.lists(token_ids, max_size=3).map(tuple), max_size=3).map(tuple),
    stop=st.one_of(st.none(), st.builds(StopStrings, st.lists(texts, max_size=3).map(tuple), st.booleans())),
    adapter=st.one_of(st.none(), texts),
    cache_salt=texts,
    priority=st.integers(-5, 5),
    deadline_s=st.one_of(st.none(), st.floats(0, 2e9)),
    pictures=st.lists(pictures, max_size=2).map(tuple),
    cache_keep_s=st.one_of(st.none(), st.floats(0, 1e6)),
    cache_key=texts,
    thinking=st.one_of(st.none(), thinking),
)


@pytest.mark.parametrize("form", [msgspec.json, msgspec.msgpack], ids=["json", "msgpack"])
@given(request=requests)
def test_a_request_survives_being_written_and_read(form: ModuleType, request: EngineRequest) -> None:
    again = form.decode(form.encode(request), type=EngineRequest)
    assert again == request
    assert again.sampling.num_sequences == request.sampling.num_sequences
    assert type(again.sampling.logit_bias) is dict
    assert isinstance(again.eos_token_ids, frozenset)


def test_nothing_in_a_request_can_be_called() -> None:
    hints = msgspec.inspect.type_info(EngineRequest)
    assert not [name for name in _type_names(hints) if "Custom" in name or "Any" in name]


def _type_names(kind: object) -> list[str]:
    """The names of msgspec's descriptions of a type and of all that it holds; types it does not know are Custom."""
    found = [type(kind).__name__]
    for name in getattr(kind, "__struct_fields__", ()):
        inner = getattr(kind, name)
        for one in inner if isinstance(inner, tuple) else (inner,):
            if isinstance(one, msgspec.inspect.Type | msgspec.inspect.Field):
                found += _type_names(one)
    assert not get_args(kind)
    return found
