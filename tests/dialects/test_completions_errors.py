"""Errors of the OpenAI-shaped dialects: tables that know every kind, one-line messages, bodies that cannot be read."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman import errors
from dragoman.errors import InvalidParameter, InvalidRequest, NotFound, Overloaded, ServerError
from dragoman.server.api import Dialect, HttpCall
from dragoman.server.apis.lmi.dialects import ERRORS as LMI_ERRORS
from dragoman.server.apis.openai_wire.completions import CompletionBody
from dragoman.server.apis.openai_wire.conversation import ChatBody
from dragoman.server.apis.openai_wire.errors import ERRORS as OPENAI
from dragoman.server.apis.openai_wire.errors import ErrorShape
from dragoman.server.apis.openai_wire.fields import BOUNDS
from dragoman.server.apis.ovms_wire import ERRORS as OVMS
from tests.dialects.openai_calls import chat, chats, complete, completions, http_call, refusal
from tests.support.tables import table
from tests.support.tiers import examples

SHAPES: dict[str, ErrorShape] = {"openai": OPENAI, "ovms": OVMS, "lmi": LMI_ERRORS}
CLASSES = {
    cls.kind: cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, ServerError) and "kind" in vars(cls)
}


STATUSES: dict[str, dict[str, int]] = {
    "openai": {"invalid_payload": 400, "unauthorized": 401, "not_found": 404, "overloaded": 429, "engine_failed": 500},
    "ovms": {"invalid_payload": 412, "invalid_parameter": 400, "unauthorized": 401, "not_found": 404, "capacity": 400},
    "lmi": {
        "invalid_payload": 424,
        "invalid_parameter": 424,
        "not_found": 404,
        "overloaded": 503,
        "engine_failed": 424,
    },
}


@table("shape", SHAPES)
def test_statuses_are_those_that_clients_of_each_api_expect(shape: str) -> None:
    assert {kind: SHAPES[shape].statuses[kind] for kind in STATUSES[shape]} == STATUSES[shape]


def test_a_full_queue_on_invocations_has_the_front_ends_shape() -> None:
    reply = LMI_ERRORS.reply(Overloaded("queue full"))
    assert json.loads(reply.body) == {"code": 503, "type": "WlmCapacityException", "message": "queue full"}


def test_an_unknown_model_on_invocations_has_the_front_ends_shape() -> None:
    reply = LMI_ERRORS.reply(NotFound("no such model"))
    assert json.loads(reply.body) == {"code": 404, "type": "ModelNotFoundException", "message": "no such model"}


@table("message", ["model x is unknown", "model x not found"])
def test_an_unknown_model_on_v3_always_says_not_found(message: str) -> None:
    assert "not found" in json.loads(OVMS.reply(NotFound(message)).body)["error"]


def test_a_width_that_an_engine_refuses_is_told_of_the_parameter_that_asked_for_it() -> None:
    details = json.loads(OPENAI.reply(InvalidParameter("num_beams is 3", param="num_beams")).body)["error"]
    assert (details["param"], details["code"]) == ("best_of", "invalid_value")


def test_an_error_without_a_kind_of_its_own_is_a_server_error() -> None:
    assert OPENAI.reply(ServerError("odd")).status == 500


# --- numbers beyond their range ---------------------------------------------------------------------------------------

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Say it"}]}

# (name, the last numbers that are taken, the first ones that are refused), written down from the APIs' references
RANGES: list[tuple[str, tuple[float, ...], tuple[float, ...]]] = [
    ("temperature", (0, 2), (-0.125, 2.125)),
    ("top_p", (0, 1), (-0.125, 1.125)),
    ("top_k", (-1, 2**32 - 1), (-2, 2**32)),
    ("min_p", (0, 1), (-0.125, 1.125)),
    ("typical_p", (0.125, 1), (0, 1.125)),
    ("repetition_penalty", (0.125,), (0,)),
    ("presence_penalty", (-2, 2), (-2.125, 2.125)),
    ("frequency_penalty", (-2, 2), (-2.125, 2.125)),
    ("n", (1,), (0,)),
    ("seed", (-(2**63), 2**64 - 1), (-(2**63) - 1, 2**64)),
    ("min_tokens", (0,), (-1,)),
    ("truncate_prompt_tokens", (1, 2**32 - 1), (0, 2**32)),
    ("max_tokens", (1, 2**32 - 1), (2**32,)),
    ("priority", (0, 2**31 - 1), (-(2**31) - 1, 2**31)),
]


@table(("name", "taken", "beyond"), RANGES)
def test_a_number_beyond_its_range_is_refused_by_name(
    name: str, taken: tuple[float, ...], beyond: tuple[float, ...]
) -> None:
    for value in taken:
        sent: dict[str, Any] = {name: value}
        complete(**sent)
        chat(**sent)
    for value in beyond:
        for dialect, asked in ((completions(), {"prompt": "x"}), (chats("v1", chat_format="openai"), CHAT)):
            refused = refusal(dialect, http_call({**asked, name: value}))
            assert refused.param == name
            assert f"{name} must be" in refused.message


# --- bodies that cannot be read ---------------------------------------------------------------------------------------

UNREADABLE: list[tuple[str, bytes]] = [
    ("empty", b""),
    ("text", b"hello"),
    ("cut", b'{"prompt": "x"'),
    ("trailing", b'{"prompt": "x"} x'),
    ("not utf-8", b'{"prompt": "\xff"}'),
    ("nan", b'{"prompt": "x", "temperature": NaN}'),
    ("lone surrogate", b'{"prompt": "\\ud800"}'),
    ("array", b"[1]"),
    ("null", b"null"),
    ("decoder's stack", b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}"),
    ("nesting", b'{"prompt": "x", "metadata": ' + b"[" * 200 + b"]" * 200 + b"}"),
]
DIALECTS: list[tuple[str, Dialect, int]] = [
    ("completions v1", completions("v1"), 400),
    ("completions v3", completions("v3"), 412),
    ("completions on invocations", completions("lmi"), 424),
    ("chat v1", chats("v1", chat_format="openai"), 400),
    ("chat v3", chats("v3"), 412),
    ("chat on invocations", chats("invocations"), 424),
]


@table(("what", "body"), UNREADABLE, ids=[what for what, _ in UNREADABLE])
@table(("route", "dialect", "status"), DIALECTS, ids=[route for route, _, _ in DIALECTS])
def test_a_body_that_is_no_json_object_is_refused_as_a_whole(
    route: str, dialect: Dialect, status: int, what: str, body: bytes
) -> None:
    assert refusal(dialect, http_call(body)).status == status


def test_a_hundred_prompts_are_not_deep_nesting() -> None:
    assert len(completions().parse(http_call({"prompt": [[1]] * 150})).requests) == 150


# --- any value for any parameter --------------------------------------------------------------------------------------

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)


def check_any_value(dialect: Dialect, body: dict[str, Any]) -> None:
    http = http_call(body)
    try:
        assert dialect.open(http).parse().requests
    except InvalidRequest as error:
        refused = error
    else:
        return
    assert "\n" not in refused.message
    assert len(refused.message) < 400
    assert dialect.error_reply(refused, http).status in (400, 412, 424)


@table("api", ["v1", "v3"])
@given(name=st.sampled_from(CompletionBody.__struct_fields__), value=VALUES)
@settings(max_examples=examples(50))
def test_any_value_of_any_completion_parameter_is_taken_or_refused(api: Any, name: str, value: Any) -> None:
    check_any_value(completions(api), {"model": "m", "prompt": "x", "max_tokens": 5, name: value})


@table("route", ["v1", "v3", "invocations"])
@given(name=st.sampled_from(ChatBody.__struct_fields__), value=VALUES)
@settings(max_examples=examples(50))
def test_any_value_of_any_chat_parameter_is_taken_or_refused(route: Any, name: str, value: Any) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], name: value}
    check_any_value(chats(route), body)


def objects(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with any of these fields, each right or wrong."""
    return st.fixed_dictionaries({}, optional={name: kind | SCALARS for name, kind in fields.items()})


FUNCTIONS = objects(name=st.sampled_from(["f", "auto"]), arguments=st.just("{}"), parameters=objects(type=SCALARS))
CALLS = st.lists(objects(id=SCALARS, type=st.just("function"), function=FUNCTIONS), max_size=2)
PARTS = objects(
    type=st.sampled_from(["text", "image_url", "refusal"]),
    text=st.text(max_size=3),
    image_url=objects(url=st.just("https://a.b/c")),
)
MESSAGES = objects(
    role=st.sampled_from(["user", "assistant"]),
    content=st.lists(PARTS, max_size=2),
    tool_calls=CALLS,
    prefix=st.booleans(),
)
FORMATS = objects(
    type=st.sampled_from(["text", "json_object", "json_schema", "regex"]),
    json_schema=objects(schema=VALUES),
    value=VALUES,
)


@table("route", ["v1", "v3", "invocations"])
@given(
    body=objects(
        messages=st.lists(MESSAGES | SCALARS, max_size=2),
        tools=CALLS,
        tool_choice=objects(function=FUNCTIONS),
        response_format=FORMATS,
        stream_options=objects(include_usage=st.booleans()),
        logit_bias=st.dictionaries(st.sampled_from(["1", "a"]), SCALARS, max_size=2),
    )
)
@settings(max_examples=examples(60))
def test_any_conversation_is_taken_or_refused(route: Any, body: dict[str, Any]) -> None:
    check_any_value(chats(route), {"model": "m", "messages": [{"role": "user"}], **body})


@table("name", sorted(BOUNDS))
@table("value", [10**400, -(10**400), 1e300, "nan", "inf", "-inf"])
def test_numbers_beyond_all_bounds_never_pass_unseen(name: str, value: Any) -> None:
    body = {"prompt": "x", "use_beam_search": True, "best_of": 2, "messages": [], name: value}
    unbounded = name in ("length_penalty", "diversity_penalty", "repetition_penalty", "repeat_penalty")
    if unbounded and value == 1e300:
        assert completions().parse(http_call(body)).requests
    elif name == "max_completion_tokens":  # of conversations
        assert refusal(chats("invocations"), http_call(body)).status == 424
    else:
        assert refusal(completions(), http_call(body)).status == 400


@table("name", sorted(name for name, bounds in BOUNDS.items() if bounds.low is not None))
def test_a_number_out_of_range_is_refused_with_its_name_its_value_and_what_is_allowed(name: str) -> None:
    bounds = BOUNDS[name]
    assert bounds.low is not None
    value = bounds.low - 1
    call = http_call({"prompt": "x", "messages": [{"role": "user", "content": "x"}], name: value})
    answer = refusal(chats("v1", chat_format="openai"), call)
    assert (answer.param, answer.status) == (name, 400)
    assert name in answer.message
    assert str(value) in answer.message
    assert str(bounds) in answer.message


@table(
    ("body", "message"),
    [
        ({"max_tokens": "many"}, 'max_tokens must be an integer, got "many"'),
        ({"temperature": []}, "temperature must be a number, got []"),
        ({"stream": "maybe"}, 'stream must be true or false, got "maybe"'),
        ({"logit_bias": [1]}, "logit_bias must be an object, got [1]"),
        ({"logit_bias": {"5": "x"}}, 'every value in logit_bias must be a number, got {"5": "x"}'),
        ({"stop": ["a", 7]}, "stop[1] must be a string, got 7"),
        ({"early_stopping": "often"}, 'early_stopping must be true, false or "never", got "often"'),
        ({"user": "x", "prompt": {"a": "b" * 200}}, None),
    ],
)
def test_a_wrong_type_is_refused_with_its_place_and_value(body: dict[str, Any], message: str | None) -> None:
    answer = refusal(completions(), http_call({"prompt": "x", **body}))
    assert answer.message == message or (message is None and len(answer.message) < 120)


# --- choosing the model before parsing --------------------------------------------------------------------------------


@table(
    ("body", "name"),
    [
        (b'{"prompt": [1, 2, {"model": "inner"}], "model": "outer"}', "outer"),
        (b'{"model": null}', None),
        (b"{}", None),
        (b'{"model": 5}', None),
        (b"not json", None),
        (b"\xff", None),
        (b"[" * 100_000, None),
    ],
)
def test_the_model_is_known_of_every_body_that_can_be_read(body: bytes, name: str | None) -> None:
    named = HttpCall("POST", "/v1/completions", body).field("model")
    assert (named if isinstance(named, str) else None) == name
