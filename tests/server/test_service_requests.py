"""What a request becomes before it runs: prompts, limits, defaults, and what is refused by name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import current_thread
from typing import Any

import pytest

from dragoman.errors import CapacityError, InvalidParameter, InvalidRequest, ServerError, UnsupportedFeature
from dragoman.server.generation.extensions import Extensions
from dragoman.server.generation.prepare import ServiceLimits
from dragoman.server.generation.service import Service
from dragoman.tokenizer.base import FimTokens
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.types import (
    ChatPrompt,
    EngineRequest,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    Grammar,
    Prompt,
    SamplingParams,
    SequenceBreaker,
    StopStrings,
    TextPrompt,
    TokenPrompt,
)
from tests.support.byte_tokenizer import BOS_ID, EOS_ID, FIM_IDS, VOCAB_SIZE, ByteTokenizer
from tests.support.fake_engine import ABILITIES, FakeEngine, saying
from tests.support.tables import table

CHAT = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
TEMPLATE = ChatTemplate(CHAT)
CONTEXT = replace(ABILITIES, max_model_len=10)


def run(request: GenerationRequest, engine: FakeEngine | None = None, **parts: Any) -> GenerationResult:
    """The request's result, from a service with these parts."""
    parts = {"name": "m", "tokenizer": ByteTokenizer(), **parts}
    return asyncio.run(Service(engine=engine or FakeEngine(saying("ok")), **parts).generate(request))


def prepared(request: GenerationRequest, engine: FakeEngine | None = None, **parts: Any) -> EngineRequest:
    """The request as its engine gets it."""
    engine = engine or FakeEngine(saying("ok"))
    run(request, engine, **parts)
    return engine.requests[0]


def asking(prompt: Prompt | str = "Hi", **options: Any) -> GenerationRequest:
    """A request; options that are sampling parameters go there."""
    names = SamplingParams.__struct_fields__
    sampling = SamplingParams(**{name: options.pop(name) for name in list(options) if name in names})
    return GenerationRequest("r1", TextPrompt(prompt) if isinstance(prompt, str) else prompt, sampling, **options)


class RecordingTokenizer(ByteTokenizer):
    """Notes the threads that encoded something."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[str] = []

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """As the byte tokenizer."""
        self.threads.append(current_thread().name)
        return super().encode(text, add_special_tokens=add_special_tokens)


# --- prompts ----------------------------------------------------------------------------------------------------------


@table(
    ("prompt", "expected"),
    [
        (TextPrompt("Hi"), [BOS_ID, *b"Hi"]),
        (TextPrompt("Hi", add_special_tokens=False), [*b"Hi"]),
        (TextPrompt(""), [BOS_ID]),
        (TextPrompt("", add_special_tokens=False), [BOS_ID]),
        (TokenPrompt((1, 2, 261)), [1, 2, 261]),
        (TokenPrompt(()), [BOS_ID]),
        (TextPrompt("a", suffix="b"), [BOS_ID, 259, *b"a", 260, *b"b", 261]),
        (TextPrompt("a", suffix="b", add_special_tokens=False), [259, *b"a", 260, *b"b", 261]),
        (ChatPrompt(({"role": "user", "content": "Hi"},)), [*b"[user]Hi"]),
    ],
)
def test_prompts_of_every_form_become_tokens(prompt: Prompt, expected: list[int]) -> None:
    request = prepared(asking(prompt), tokenizer=ByteTokenizer(adds_bos=True), chat_template=TEMPLATE)
    assert list(request.prompt_ids) == expected


def test_a_suffix_goes_first_where_the_model_wants_it_so() -> None:
    tokenizer = ByteTokenizer()
    tokenizer.fim_tokens = FimTokens(prefix=1, suffix=2, middle=None, suffix_first=True)
    assert list(prepared(asking(TextPrompt("a", suffix="b")), tokenizer=tokenizer).prompt_ids) == [2, *b"b", 1, *b"a"]


def test_the_prompt_is_told_as_the_model_saw_it() -> None:
    chat = asking(ChatPrompt(({"role": "user", "content": "Hi"},)))
    assert run(chat, chat_template=TEMPLATE).prompt.text == "[user]Hi"
    assert run(asking(TokenPrompt((*b"Hi", EOS_ID)))).prompt.text == "Hi</s>"


def test_truncation_keeps_the_last_tokens() -> None:
    assert prepared(asking("Hello", truncate_prompt_tokens=2)).prompt_ids == tuple(b"lo")
    assert prepared(asking("Hello", truncate_prompt_tokens=9)).prompt_ids == tuple(b"Hello")


def test_only_short_prompts_of_templates_that_somebody_vouches_for_are_prepared_in_place() -> None:
    tokenizer = RecordingTokenizer()
    messages = ({"role": "user", "content": "x" * 31},)
    with ThreadPoolExecutor(1, thread_name_prefix="tokenise") as pool:
        for prompt in (TextPrompt("x" * 30), TextPrompt("x" * 31), ChatPrompt(messages)):
            limits = ServiceLimits(max_inline_chars=30)
            run(asking(prompt), tokenizer=tokenizer, limits=limits, pool=pool, chat_template=TEMPLATE)
        for template in (ChatTemplate(CHAT, is_vouched=True), TEMPLATE):
            run(asking(ChatPrompt(messages)), tokenizer=tokenizer, chat_template=template)
    here = current_thread().name
    assert tokenizer.threads == [here, "tokenise_0", "dragoman-templates_0", here, "dragoman-templates_0"]


# --- limits -----------------------------------------------------------------------------------------------------------


@table(
    ("num_prompt", "max_tokens", "on_overflow", "expected"),
    [
        (4, None, "refuse", 6),
        (4, 6, "refuse", 6),
        (4, 2, "clip", 2),
        (4, 7, "clip", 6),
        (9, None, "refuse", 1),
        (9, 0, "refuse", 0),
    ],
)
def test_what_fits_the_context_is_generated(num_prompt: int, max_tokens: int, on_overflow: Any, expected: int) -> None:
    request = asking("x" * num_prompt, max_tokens=max_tokens, on_overflow=on_overflow)
    assert prepared(request, FakeEngine(saying("ok"), capabilities=CONTEXT)).max_tokens == expected


def test_a_clipped_sequence_ends_with_length() -> None:
    engine = FakeEngine(saying("a long answer"), capabilities=CONTEXT)
    (sequence,) = run(asking("x" * 4, max_tokens=100, on_overflow="clip"), engine).sequences
    assert (sequence.text, sequence.finish_reason) == ("a long", FinishReason.LENGTH)


@table(
    ("num_prompt", "max_tokens", "on_overflow", "says", "param"),
    [
        (
            4,
            7,
            "refuse",
            "maximum context length is 10 tokens. However, you requested 11 tokens (4 in the",
            "max_tokens",
        ),
        (10, None, "refuse", "maximum context length is 10 tokens. However, your prompt alone has 10", "prompt"),
        (10, 1, "clip", "your prompt alone has 10 tokens", "prompt"),
        (10, 0, "refuse", "your prompt alone has 10 tokens", "prompt"),
    ],
)
def test_what_exceeds_the_context_is_refused_with_both_numbers(
    num_prompt: int, max_tokens: int | None, on_overflow: Any, says: str, param: str
) -> None:
    engine = FakeEngine(saying("ok"), capabilities=CONTEXT)
    with pytest.raises(CapacityError) as caught:
        run(asking("x" * num_prompt, max_tokens=max_tokens, on_overflow=on_overflow), engine)
    error = caught.value
    assert says in error.message
    assert (error.param, error.num_prompt_tokens, error.max_tokens, error.max_model_len) == (
        param, num_prompt, max_tokens, 10
    )  # fmt: skip
    assert engine.requests == []


@table(("limit", "expected"), [(None, 10), (7, 7), (50, 10)])
def test_the_operator_can_only_shorten_the_context(limit: int | None, expected: int) -> None:
    engine = FakeEngine(saying("ok"), capabilities=CONTEXT)
    service = Service(name="m", engine=engine, tokenizer=ByteTokenizer(), limits=ServiceLimits(max_model_len=limit))
    assert service.max_model_len == expected
    asyncio.run(service.generate(asking("xx")))
    assert engine.requests[0].max_tokens == expected - 2


# --- resolved values --------------------------------------------------------------------------------------------------


def test_a_seed_is_drawn_once_if_none_is_given_and_told_to_the_client() -> None:
    engine = FakeEngine(saying("ok"))
    drawn = run(asking(), engine, extensions=Extensions(draw_seed=iter((7, 8)).__next__))
    assert (engine.requests[0].seed, drawn.prompt.seed) == (7, 7)
    assert prepared(asking(seed=0)).seed == 0
    assert 0 <= prepared(asking()).seed < 2**53


def test_bad_words_are_banned_inside_a_text_and_after_a_space() -> None:
    request = prepared(asking(bad_words=("ab", " cd", "ab", "")))
    assert set(request.bad_word_ids) == {tuple(b"ab"), tuple(b" ab"), tuple(b" cd"), tuple(b" ")}
    assert len(request.bad_word_ids) == 4


def test_sequence_breakers_become_tokens_only_where_dry_wants_them() -> None:
    wanted: dict[str, Any] = {"dry_multiplier": 0.8, "dry_sequence_breakers": ("\n", "ab")}
    assert prepared(asking(**wanted)).dry_breakers == (
        SequenceBreaker((ord("\n"),)),
        SequenceBreaker((ord("a"),), (ord("b"),)),  # each of this tokenizer's tokens is one byte
    )
    assert prepared(asking(**wanted, dry_penalty_last_n=0)).dry_breakers == ()
    assert prepared(asking(dry_sequence_breakers=("x",))).dry_breakers == ()


def test_the_engine_knows_every_end_of_sequence_token() -> None:
    assert prepared(asking()).eos_token_ids == ByteTokenizer().eos_token_ids


def test_the_end_of_a_turn_ends_answers_in_a_chat_and_grammars_but_no_plain_text() -> None:
    own, turn_end = ByteTokenizer().eos_token_ids, FIM_IDS.prefix

    def compile_grammar(grammar: Grammar) -> Any:
        return None

    extensions = Extensions(compile_grammar=compile_grammar, turn_end_ids=frozenset((turn_end,)))
    chat = asking(ChatPrompt(({"role": "user", "content": "Hi"},)))
    for request, expected in (
        (asking(), own),
        (chat, own | {turn_end}),
        (asking(grammar=Grammar("json_object")), own | {turn_end}),
    ):
        engine = FakeEngine(saying("ok"), capabilities=replace(ABILITIES, grammar=True))
        asked = prepared(request, engine, extensions=extensions, chat_template=TEMPLATE)
        assert asked.eos_token_ids == expected


def test_the_engine_gets_the_stop_strings_and_whether_special_tokens_count() -> None:
    assert prepared(asking()).stop is None
    assert prepared(asking(stop=("k", "."))).stop == StopStrings(("k", "."))
    assert prepared(asking(stop=("k",), skip_special_tokens=False)).stop == StopStrings(("k",), False)


def test_the_engine_is_told_when_the_request_is_given_up() -> None:
    begin = time.time()
    request = prepared(asking(), limits=ServiceLimits(request_timeout_s=60.0))
    assert request.deadline_s is not None
    assert begin <= request.deadline_s - 60.0 <= time.time()
    assert prepared(asking()).deadline_s is None


def test_ranked_sequences_show_the_stop_string_no_more_than_others() -> None:
    result = run(asking(num_beams=3, n=2, stop=("k",)), FakeEngine(saying("abk", "xk!", "k")))
    assert sorted(sequence.text for sequence in result.sequences) in (["", "ab"], ["", "x"], ["ab", "x"])
    assert [sequence.stop_match for sequence in result.sequences] == ["k", "k"]
    assert all(sequence.finish_reason is FinishReason.STOP_STRING for sequence in result.sequences)


def test_a_grammar_is_compiled_once_to_see_that_it_does_and_then_given_to_the_engine_as_it_is() -> None:
    compiled: list[Grammar] = []

    def compile_grammar(grammar: Grammar) -> Any:
        compiled.append(grammar)

    grammar = Grammar("regex", "a+")
    assert prepared(asking(grammar=grammar), extensions=Extensions(compile_grammar)).sampling.grammar == grammar
    assert compiled == [grammar]


def test_a_grammar_that_does_not_compile_never_reaches_the_engine() -> None:
    def compile_grammar(grammar: Grammar) -> Any:
        raise InvalidParameter("unclosed bracket at 3", param="response_format")

    engine = FakeEngine(saying("ok"))
    with pytest.raises(InvalidParameter, match="unclosed bracket at 3"):
        run(asking(grammar=Grammar("regex", "a[")), engine, extensions=Extensions(compile_grammar))
    assert engine.requests == []


# --- refusals ---------------------------------------------------------------------------------------------------------

NOTHING = replace(ABILITIES, beam_search=False, best_of=False, grammar=False, prompt_logprobs=False, max_logprobs=5)
OUTSIDE = VOCAB_SIZE


@table(
    ("request_", "error", "param", "says"),
    [
        (asking(num_beams=4), UnsupportedFeature, "num_beams", "num_beams 4 .* must be 1"),
        (asking(best_of=3, n=2), UnsupportedFeature, "best_of", r"best_of 3 .* n \(2\)"),
        (asking(prompt_logprobs=0), UnsupportedFeature, "prompt_logprobs", "prompt_logprobs 0"),
        (asking(grammar=Grammar("lark", "x")), UnsupportedFeature, "grammar", "grammar lark"),
        (asking(logprobs=6), InvalidParameter, "logprobs", "at most 5, got 6"),
        (asking(logit_bias={3: 1.0, OUTSIDE: 2.0}), InvalidParameter, "logit_bias", f"to 261 only, got {OUTSIDE}"),
        (asking(allowed_token_ids=(1, -1)), InvalidParameter, "allowed_token_ids", "got -1"),
        (asking(allowed_token_ids=()), InvalidParameter, "allowed_token_ids", "at least one"),
        (asking(stop_token_ids=(OUTSIDE,)), InvalidParameter, "stop_token_ids", f"got {OUTSIDE}"),
        (asking(stop=("a", "")), InvalidParameter, "stop", "empty"),
        (asking(truncate_prompt_tokens=0), InvalidParameter, "truncate_prompt_tokens", "at least 1, got 0"),
        (asking(TokenPrompt((5, OUTSIDE))), InvalidRequest, "prompt", f"token id {OUTSIDE}.* 0 to 261"),
        (asking(TokenPrompt((-1,))), InvalidRequest, "prompt", "token id -1"),
        (asking(""), InvalidRequest, "prompt", "must not be empty"),
        (asking(TextPrompt("a", suffix="b")), UnsupportedFeature, "suffix", "fill-in-the-middle"),
        (asking(ChatPrompt(({"role": "user", "content": "a"},))), UnsupportedFeature, "messages", "no chat template"),
    ],
)
def test_what_the_model_or_engine_cannot_do_is_refused_by_name(
    request_: GenerationRequest, error: type[ServerError], param: str, says: str
) -> None:
    engine = FakeEngine(saying("ok"), capabilities=NOTHING)
    with pytest.raises(error, match=says) as caught:
        run(request_, engine, tokenizer=ByteTokenizer(has_bos=False, has_fim=False))
    assert caught.value.param == param
    assert engine.requests == []


def test_a_grammar_that_the_service_cannot_judge_is_left_to_the_engine() -> None:
    grammar = Grammar("json_object")
    assert prepared(asking(grammar=grammar)).sampling.grammar == grammar


# --- tokenising for its own sake --------------------------------------------------------------------------------------


@table("max_inline_chars", [0, 1000])
def test_prompts_can_be_tokenised_without_running_them(max_inline_chars: int) -> None:
    service = Service(
        name="m",
        engine=FakeEngine(saying("ok")),
        tokenizer=ByteTokenizer(adds_bos=True),
        chat_template=TEMPLATE,
        limits=ServiceLimits(max_inline_chars=max_inline_chars),
    )
    tokens = asyncio.run(service.tokenize(ChatPrompt(({"role": "user", "content": "Hi"},))))
    assert (tokens.text, tokens.token_ids) == ("[user]Hi", tuple(b"[user]Hi"))
    assert asyncio.run(service.tokenize(TextPrompt("Hi"))).token_ids == (BOS_ID, *b"Hi")


@table("max_inline_chars", [0, 2_000])
def test_token_ids_can_be_made_text_again(max_inline_chars: int) -> None:
    limits = ServiceLimits(max_inline_chars=max_inline_chars)
    service = Service(name="m", engine=FakeEngine(saying("ok")), tokenizer=ByteTokenizer(), limits=limits)
    ids: Sequence[int] = [BOS_ID, *"é".encode()]
    assert asyncio.run(service.detokenize(ids)) == "<s>é"
    with pytest.raises(InvalidRequest, match=f"tokens holds token id {OUTSIDE}"):
        asyncio.run(service.detokenize([OUTSIDE]))


class Untouchable(ByteTokenizer):
    """A tokenizer for prompts that must be refused before anybody tokenises or decodes them."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        raise AssertionError(f"{len(text)} characters were tokenised")

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        raise AssertionError("token ids were decoded")


@table(
    ("prompt", "told"),
    [
        (TextPrompt("x" * 100_000), "your prompt alone has at least 100000 tokens"),
        (TextPrompt("x" * 50_000, suffix="y" * 50_000), "your prompt alone has at least 100000 tokens"),
        (ChatPrompt(({"role": "user", "content": "x" * 100_000},)), "your prompt alone has at least 100006 tokens"),
        (TokenPrompt((1,) * 100_000), "your prompt alone has 100000 tokens"),
    ],
    ids=["text", "suffix", "chat", "tokens"],
)
def test_what_cannot_fit_is_refused_before_it_is_tokenised(prompt: Prompt, told: str) -> None:
    engine = FakeEngine(saying("ok"), capabilities=replace(ABILITIES, max_model_len=99))
    service = Service(name="m", engine=engine, tokenizer=Untouchable(), chat_template=TEMPLATE)
    with pytest.raises(CapacityError, match=told):
        asyncio.run(service.generate(GenerationRequest("r", prompt)))


@table("keep", [None, 5])
def test_a_text_of_many_megabytes_is_not_tokenised_at_all(keep: int | None) -> None:
    engine = FakeEngine(saying("ok"), capabilities=replace(ABILITIES, max_model_len=10**9))
    service = Service(name="m", engine=engine, tokenizer=Untouchable())
    request = GenerationRequest("r", TextPrompt("x" * 4_000_001), truncate_prompt_tokens=keep)
    with pytest.raises(CapacityError, match="at most 4000000 characters, got 4000001"):
        asyncio.run(service.generate(request))
