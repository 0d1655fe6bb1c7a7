"""What a completion body becomes: every parameter of the request tables, prompts in all forms, defaults per prefix."""

from __future__ import annotations

import re
from typing import Any

from dragoman.server.apis.openai_wire.completions import CompletionBody
from dragoman.types import Grammar, Limits, TextPrompt, TokenPrompt
from tests.dialects.openai_calls import (
    CompletionsApi,
    chats,
    complete,
    completions,
    http_call,
    refusal,
    request,
    sampling,
)
from tests.support.tables import table

HI = {"messages": [{"role": "user", "content": "hi"}]}

BOTH: tuple[CompletionsApi, ...] = ("v1", "v3")

# The request tables of the OVMS completions page, and its lists of parameters that page calls unsupported: the parameter,
# a value, and the neutral sampling parameter it must become.
SAMPLING_ROWS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("ignore_eos", {"ignore_eos": True, "max_tokens": 9}, {"ignore_eos": True}),
    ("logprobs", {"logprobs": 3}, {"logprobs": 3, "prompt_logprobs": None}),
    ("echo with logprobs", {"logprobs": 3, "echo": True}, {"logprobs": 3, "prompt_logprobs": 3}),
    ("echo alone", {"echo": True}, {"logprobs": None, "prompt_logprobs": None}),
    ("n", {"n": 3}, {"n": 3, "best_of": None, "num_beams": 1}),
    ("length_penalty", {"length_penalty": 0.5}, {"length_penalty": 0.5}),
    ("temperature", {"temperature": 0.3}, {"temperature": 0.3}),
    ("temperature 0", {"temperature": 0}, {"temperature": 0.0, "is_greedy": True}),
    ("top_p", {"top_p": 0.5}, {"top_p": 0.5}),
    ("top_k", {"top_k": 7}, {"top_k": 7}),
    ("top_k -1 means all tokens", {"top_k": -1}, {"top_k": 0}),
    ("repetition_penalty", {"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
    ("frequency_penalty", {"frequency_penalty": -2}, {"frequency_penalty": -2.0}),
    ("presence_penalty", {"presence_penalty": 2}, {"presence_penalty": 2.0}),
    ("seed", {"seed": 42}, {"seed": 42}),
    ("logit_bias", {"logit_bias": {"50256": -100, "7": 1.5}}, {"logit_bias": {50256: -100.0, 7: 1.5}}),
    ("min_p", {"min_p": 0.1}, {"min_p": 0.1}),
    ("typical_p", {"typical_p": 0.9}, {"typical_p": 0.9}),
    ("use_beam_search", {"use_beam_search": True, "best_of": 4, "n": 2}, {"num_beams": 4, "n": 2, "best_of": None}),
    ("use_beam_search alone", {"use_beam_search": True, "n": 3}, {"num_beams": 3, "n": 3}),
    ("use_beam_search of width 1", {"use_beam_search": True}, {"num_beams": 1, "temperature": 0.0}),
    ("early_stopping", {"early_stopping": True}, {"early_stopping": True}),
    ("early_stopping never", {"early_stopping": "never"}, {"early_stopping": "never"}),
    ("stop_token_ids", {"stop_token_ids": [2, 13]}, {"stop_token_ids": (2, 13)}),
    ("min_tokens", {"min_tokens": 3, "max_tokens": 5}, {"min_tokens": 3}),
    ("prompt_logprobs", {"prompt_logprobs": 2}, {"prompt_logprobs": 2}),
    ("prompt_logprobs above logprobs", {"prompt_logprobs": 5, "logprobs": 1, "echo": True}, {"prompt_logprobs": 5}),
    ("bad_words", {"bad_words": ["ugly"]}, {"bad_words": ("ugly",)}),
    ("allowed_token_ids", {"allowed_token_ids": [5, 6]}, {"allowed_token_ids": (5, 6)}),
    (
        "diversity_penalty makes every beam a group",
        {"best_of": 4, "use_beam_search": True, "diversity_penalty": 0.7},
        {"num_beams": 4, "num_beam_groups": 4, "diversity_penalty": 0.7},
    ),
    (
        "num_beam_groups has the documented penalty of 1.0",
        {"best_of": 4, "use_beam_search": True, "num_beam_groups": 2},
        {"num_beam_groups": 2, "diversity_penalty": 1.0},
    ),
    (
        "diversity_penalty 0 is plain beam search",
        {"best_of": 4, "use_beam_search": True, "diversity_penalty": 0},
        {"num_beam_groups": 1, "diversity_penalty": 0.0},
    ),
    ("guided_regex", {"guided_regex": "a+"}, {"grammar": Grammar("regex", "a+")}),
    ("guided_grammar", {"guided_grammar": 'start: "a"'}, {"grammar": Grammar("lark", 'start: "a"')}),
    ("guided_choice", {"guided_choice": ["a", "b"]}, {"grammar": Grammar("choice", '["a","b"]')}),
    ("guided_json", {"guided_json": {"type": "object"}}, {"grammar": Grammar("json_schema", '{"type":"object"}')}),
    ("response_format", {"response_format": {"type": "json_object"}}, {"grammar": Grammar("json_object")}),
]

REQUEST_ROWS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("max_tokens", {"max_tokens": 50}, {"max_tokens": 50, "on_overflow": "refuse"}),
    ("max_tokens 0 with echo", {"max_tokens": 0, "echo": True}, {"max_tokens": 0}),
    ("stop as a string", {"stop": "END"}, {"stop": ("END",)}),
    ("stop as strings", {"stop": ["a", "b"]}, {"stop": ("a", "b")}),
    ("stop empty", {"stop": []}, {"stop": ()}),
    ("include_stop_str_in_output", {"include_stop_str_in_output": True}, {"include_stop_in_text": True}),
    ("include_stop_str_in_output default", {}, {"include_stop_in_text": False}),
    ("skip_special_tokens", {"skip_special_tokens": False}, {"skip_special_tokens": False}),
    (
        "spaces_between_special_tokens",
        {"spaces_between_special_tokens": False},
        {"spaces_between_special_tokens": False},
    ),
    ("truncate_prompt_tokens", {"truncate_prompt_tokens": 8}, {"truncate_prompt_tokens": 8}),
    ("suffix", {"prompt": "def f(", "suffix": "return x"}, {"prompt": TextPrompt("def f(", suffix="return x")}),
    ("empty suffix", {"prompt": "def f(", "suffix": ""}, {"prompt": TextPrompt("def f(")}),
    ("add_special_tokens", {"add_special_tokens": False}, {"prompt": TextPrompt("Say it", add_special_tokens=False)}),
]


def ids(rows: list[tuple[str, dict[str, Any], dict[str, Any]]]) -> list[str]:
    return [row[0] for row in rows]


@table("api", BOTH)
@table(("name", "body", "expected"), SAMPLING_ROWS, ids=ids(SAMPLING_ROWS))
def test_sampling_parameters_reach_the_engine(
    api: CompletionsApi, name: str, body: dict[str, Any], expected: dict[str, Any]
) -> None:
    params = sampling(complete(api, **body))
    assert {key: getattr(params, key) for key in expected} == expected


@table("api", BOTH)
@table(("name", "body", "expected"), REQUEST_ROWS, ids=ids(REQUEST_ROWS))
def test_request_parameters_reach_the_service(
    api: CompletionsApi, name: str, body: dict[str, Any], expected: dict[str, Any]
) -> None:
    asked = request(complete(api, **body))
    assert {key: getattr(asked, key) for key in expected} == expected


def test_a_bare_body_samples_at_temperature_one_without_any_filter() -> None:
    params = sampling(complete())
    assert (params.temperature, params.top_p, params.top_k, params.min_p, params.n) == (1.0, 1.0, 0, 0.0, 1)
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.0, 0.0, 0.0)
    assert (params.length_penalty, params.num_beams, params.logprobs, params.grammar) == (1.0, 1, None, None)


@table(("api", "seed", "max_tokens"), [("v1", None, 16), ("v3", 0, None), ("lmi", None, 16)])
def test_each_route_has_its_own_default_seed_and_limit(
    api: CompletionsApi, seed: int | None, max_tokens: int | None
) -> None:
    asked = request(complete(api))
    assert (asked.sampling.seed, asked.max_tokens) == (seed, max_tokens)


@table(
    ("api", "body", "expected"),
    [
        ("v1", {}, "clip"),
        ("v1", {"max_tokens": 9}, "refuse"),
        ("v3", {"max_tokens": 9}, "refuse"),
        ("lmi", {"max_tokens": 9}, "clip"),
    ],
)
def test_only_a_limit_the_client_set_can_be_too_long_for_the_context(
    api: CompletionsApi, body: dict[str, Any], expected: str
) -> None:
    assert request(complete(api, **body)).on_overflow == expected


def test_negative_seeds_become_the_unsigned_number_of_the_same_bits() -> None:
    assert sampling(complete(seed=-1)).seed == 2**64 - 1


def test_top_p_zero_keeps_only_the_most_likely_token() -> None:
    assert 0.0 < sampling(complete(top_p=0)).top_p < 1e-6


def test_numbers_and_booleans_may_come_as_strings_on_v1() -> None:
    call = complete(max_tokens="25", temperature="0.5", stream="true", n="2")
    assert (request(call).max_tokens, sampling(call).temperature, sampling(call).n, call.stream) == (25, 0.5, 2, True)


def test_the_string_null_is_a_prompt_like_any_other() -> None:
    assert request(complete(prompt="null")).prompt == TextPrompt("null")


@table("api", ["v1", "v3", "lmi"])
def test_null_means_not_given_for_every_parameter(api: CompletionsApi) -> None:
    given = {"prompt": "Say it", "model": "served-model"}
    nulls = {name: None for name in CompletionBody.__struct_fields__ if name not in given}
    refused = {"logits_processors": None, "chat_template": None}
    plain, padded = complete(api, **given), complete(api, **given, **nulls, **refused)
    assert padded.requests == plain.requests
    assert (padded.stream, padded.ignored) == (False, ())


# --- prompts ----------------------------------------------------------------------------------------------------------


@table("api", BOTH)
@table(
    ("prompt", "expected"),
    [
        ("one", [TextPrompt("one")]),
        (["one"], [TextPrompt("one")]),
        (["one", "two"], [TextPrompt("one"), TextPrompt("two")]),
        ([1, 2, 3], [TokenPrompt((1, 2, 3))]),
        ([[1, 2], [3]], [TokenPrompt((1, 2)), TokenPrompt((3,))]),
        (["one", [3]], [TextPrompt("one"), TokenPrompt((3,))]),
    ],
    ids=["string", "one string", "strings", "token ids", "lists of token ids", "mixed"],
)
def test_prompts_come_as_text_ids_or_lists_of_either(api: CompletionsApi, prompt: Any, expected: list[Any]) -> None:
    assert [asked.prompt for asked in complete(api, prompt=prompt).requests] == expected


def test_several_prompts_are_several_requests_with_ids_of_their_own() -> None:
    call = complete(prompt=["a", "b"], temperature=0)
    assert [asked.request_id for asked in call.requests] == ["req-1-0", "req-1-1"]
    assert call.requests[0].sampling == call.requests[1].sampling


@table(
    ("prompt", "words"),
    [
        ([], "prompt is missing"),
        ([[]], "prompt[0] must hold at least one token id"),
        ([1, -5], "got -5"),
        ([1, "a"], "prompt[0]"),
        ([[1, 1.5]], "prompt[0][1] must be an integer, got 1.5"),
        ({"text": "a"}, 'got {"text": "a"}'),
        (7, "got 7"),
    ],
)
def test_a_prompt_of_any_other_form_is_refused(prompt: Any, words: str) -> None:
    answer = refusal(completions(), http_call({"prompt": prompt}))
    assert answer.status == 400
    assert words in answer.message


def test_an_empty_string_is_a_prompt_on_v1_and_none_on_v3() -> None:
    assert request(complete(prompt="")).prompt == TextPrompt("")
    assert refusal(completions("v3"), http_call({"model": "m", "prompt": ""})).body == {"error": "prompt is missing"}


def test_a_suffix_needs_a_prompt_of_text() -> None:
    answer = refusal(completions(), http_call({"prompt": [1, 2], "suffix": "end"}))
    assert (answer.param, answer.status) == ("suffix", 400)


# --- what several parameters say together -----------------------------------------------------------------------------


@table(
    ("api", "body", "best_of", "num_beams"),
    [
        ("v1", {"best_of": 4, "n": 2}, 4, 1),
        ("v1", {"best_of": 4, "n": 2, "use_beam_search": True}, None, 4),
        ("v3", {"best_of": 4, "n": 2}, None, 4),
        ("v3", {"best_of": 4, "n": 2, "use_beam_search": False}, 4, 1),
        ("v3", {"n": 2}, None, 1),
        ("v3", {"best_of": 1}, None, 1),
        ("lmi", {"best_of": 4}, 4, 1),
    ],
)
def test_best_of_is_the_beam_width_on_v3_and_counts_samples_elsewhere(
    api: CompletionsApi, body: dict[str, Any], best_of: int | None, num_beams: int
) -> None:
    params = sampling(complete(api, **body))
    assert (params.best_of, params.num_beams) == (best_of, num_beams)


@table(
    ("body", "param"),
    [
        ({"n": 3, "best_of": 2}, "n"),
        ({"n": 21}, "n"),
        ({"best_of": 21}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"use_beam_search": True, "n": 2, "stream": True}, "use_beam_search"),
        ({"use_beam_search": True, "best_of": 4, "num_beam_groups": 3}, "num_beam_groups"),
        ({"min_tokens": 9, "max_tokens": 5}, "min_tokens"),
        ({"num_assistant_tokens": 3, "assistant_confidence_threshold": 0.5}, "num_assistant_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"stop": "x", "detokenize": False}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"bad_words": [""]}, "bad_words"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
    ],
)
def test_parameters_that_contradict_or_exceed_are_refused_by_name(body: dict[str, Any], param: str) -> None:
    answer = refusal(completions(), http_call({"prompt": "x", **body}))
    assert (answer.status, answer.param) == (400, param)
    assert answer.body["error"]["param"] == param
    assert param.partition("[")[0] in answer.message


def test_streaming_takes_best_of_where_every_drawn_sequence_is_a_choice() -> None:
    assert complete(n=2, best_of=2, stream=True).stream
    assert complete("v3", best_of=1, stream=True).stream


def test_the_operators_limits_bound_what_one_request_may_ask() -> None:
    dialect = completions(limits=Limits(max_stop_strings=1, max_best_of=2, max_logprobs=3))
    for body in ({"stop": ["a", "b"]}, {"best_of": 3}, {"n": 3}, {"logprobs": 4}):
        assert refusal(dialect, http_call({"prompt": "x", **body})).status == 400
    assert dialect.parse(http_call({"prompt": "x", "stop": ["a"], "best_of": 2, "logprobs": 3}))


def test_minus_one_candidates_are_all_of_the_vocabulary_within_the_operators_limit() -> None:
    body = {"prompt": "x", "prompt_logprobs": -1}
    talk = {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": -1}
    roomy: Any = {"limits": Limits(max_logprobs=300), "vocab_size": 300}
    assert sampling(completions(**roomy).parse(http_call(body))).prompt_logprobs == 300
    assert sampling(chats(**roomy).parse(http_call(talk, accept="text/event-stream"))).logprobs == 300
    for refused in (
        refusal(completions(vocab_size=300), http_call(body)),
        refusal(chats(vocab_size=300), http_call(talk, accept="text/event-stream")),
    ):
        assert refused.status == 400
        assert re.fullmatch(
            r"\w+_logprobs -1 asks for all 300 tokens of the vocabulary, at most 20 are allowed \(--max-logprobs\)",
            refused.message,
        )
    assert refusal(completions(**roomy), http_call({"prompt": "x", "prompt_logprobs": -2})).param == "prompt_logprobs"


def test_code_from_a_request_is_refused_by_name() -> None:
    answer = refusal(completions(), http_call({"prompt": "x", "logits_processors": ["os.system"]}))
    assert (answer.status, answer.param) == (400, "logits_processors")


# --- what had no effect is told ---------------------------------------------------------------------------------------


def test_unknown_parameters_are_accepted_and_listed_in_the_order_they_came() -> None:
    call = complete(zeta=1, user="me", alpha={"deep": [1]}, stream=True, stream_options={"chunk_every": 5})
    assert call.ignored == ("zeta", "user", "alpha", "stream_options.chunk_every")


def test_speculative_parameters_act_where_the_server_speculates_and_are_listed_elsewhere() -> None:
    body = {"prompt": "x", "num_assistant_tokens": 3, "max_ngram_size": 2}
    off = completions().parse(http_call(body))
    on = completions(proposer="lookup").parse(http_call(body))
    assert off.ignored == ("num_assistant_tokens", "max_ngram_size")
    assert (sampling(off).num_assistant_tokens, sampling(off).max_ngram_size) == (None, None)
    assert on.ignored == ()
    assert (sampling(on).num_assistant_tokens, sampling(on).max_ngram_size) == (3, 2)


def test_assistant_confidence_threshold_acts_where_the_server_speculates() -> None:
    for value in (0.4, 1.0):
        for proposer in ("lookup", "draft"):
            body = {"prompt": "x", "assistant_confidence_threshold": value}
            call = completions(proposer=proposer).parse(http_call(body))
            assert (sampling(call).assistant_confidence_threshold, call.ignored) == (value, ())


def test_a_draft_model_has_no_ngrams() -> None:
    body = {"prompt": "x", "num_assistant_tokens": 32, "max_ngram_size": 2}
    conversation = chats(proposer="draft").parse(http_call({**body, **HI}))
    for call in (completions(proposer="draft").parse(http_call(body)), conversation):
        assert call.ignored[-1] == "max_ngram_size"
        assert "num_assistant_tokens" not in call.ignored
        assert (sampling(call).num_assistant_tokens, sampling(call).max_ngram_size) == (32, None)


def test_a_request_may_have_nothing_guessed() -> None:
    call = completions(proposer="lookup").parse(http_call({"prompt": "x", "num_assistant_tokens": 0}))
    assert (sampling(call).num_assistant_tokens, call.ignored) == (0, ())


@table("plainly", [{"best_of": 2, "use_beam_search": True}, {"prompt_logprobs": 1}])
def test_requests_that_never_speculate_list_all_speculative_parameters(plainly: dict[str, Any]) -> None:
    body = {"prompt": "x", "num_assistant_tokens": 3, "max_ngram_size": 2, **plainly}
    call = completions(proposer="lookup").parse(http_call(body))
    assert call.ignored == ("num_assistant_tokens", "max_ngram_size")


@table("proposer", [None, "draft", "lookup"])
@table(
    ("body", "message"),
    [
        ({"num_assistant_tokens": 33}, "num_assistant_tokens must be between 0 and 32, got 33"),
        (
            {"assistant_confidence_threshold": 1.5},
            "assistant_confidence_threshold must be greater than 0.0 and at most 1.0, got 1.5",
        ),
        (
            {"assistant_confidence_threshold": 0},
            "assistant_confidence_threshold must be greater than 0.0 and at most 1.0, got 0.0",
        ),
    ],
)
def test_speculative_parameters_beyond_their_range_are_errors(
    proposer: Any, body: dict[str, Any], message: str
) -> None:
    answers = [
        refusal(completions(proposer=proposer), http_call({"prompt": "x", **body})),
        refusal(completions("lmi", proposer=proposer), http_call({"prompt": "x", **body})),
        refusal(chats(proposer=proposer, chat_format="openai"), http_call({**HI, **body})),
    ]
    assert [answer.message for answer in answers] == [message] * 3


@table("value", [-1, 0, 2**32])
def test_every_refusal_of_a_limit_names_the_same_range(value: int) -> None:
    completion = refusal(completions(), http_call({"prompt": "x", "max_tokens": value}))
    assert completion.message == f"max_tokens must be between 1 and 4294967295 (or 0 with echo: true), got {value}"
    for name in ("max_tokens", "max_completion_tokens"):
        chat = refusal(chats(chat_format="openai"), http_call({**HI, name: value}))
        assert chat.message == f"{name} must be between 1 and 4294967295, got {value}"


def test_beam_parameters_are_listed_when_there_are_no_beams() -> None:
    body: dict[str, Any] = {"length_penalty": 0.5, "early_stopping": True, "diversity_penalty": 0.5}
    assert complete(**body).ignored == tuple(body)
    assert complete(**body, use_beam_search=True, best_of=2).ignored == ()


def test_filters_are_listed_when_nothing_is_drawn() -> None:
    filters: dict[str, Any] = {"top_k": 5, "top_p": 0.5, "min_p": 0.1, "typical_p": 0.9}
    assert complete(temperature=0, **filters).ignored == tuple(filters)
    assert complete(temperature=0.1, **filters).ignored == ()
    assert complete(temperature=0, top_p=1, top_k=-1).ignored == ()
    assert complete(use_beam_search=True, best_of=2, **filters).ignored == tuple(filters)


# --- which model ------------------------------------------------------------------------------------------------------


@table("name", [None, "", "default", "dummy", "tgi", "lmi", "model"])
def test_a_placeholder_model_is_the_default_model(name: str | None) -> None:
    assert request(complete(model=name)).model is None


def test_a_named_model_travels_with_the_request_except_on_invocations() -> None:
    assert request(complete(model="llama3")).model == "llama3"
    assert request(complete("lmi", model="llama3")).model is None
