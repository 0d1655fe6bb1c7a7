"""Conversations with pictures: what the engine gets, what is counted, and what is refused before anything runs."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from dragoman.engine.base import PictureRules
from dragoman.errors import (
    CapacityError,
    InvalidParameter,
    InvalidRequest,
    RequestTimeout,
    TextOnly,
    UnsupportedFeature,
)
from dragoman.server.generation.prepare import ServiceLimits
from dragoman.server.generation.service import Service
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.types import ChatPrompt, EngineRequest, GenerationRequest, GenerationResult, TextPrompt, TokenPrompt
from tests.pictures.drawing import data_url, pixels_of, png
from tests.support.byte_tokenizer import BOS_ID, ByteTokenizer
from tests.support.fake_engine import ABILITIES, FakeEngine, saying
from tests.support.patience import PATIENCE_S
from tests.support.seeing import (
    PARTS,
    PLACEHOLDER,
    PLACEHOLDER_ID,
    SEEING,
    STRINGS,
    GridProcessor,
    HeldLoader,
    SeeingTokenizer,
    seeing_service,
    what_it_sees,
)
from tests.support.streaming import stream_of
from tests.support.tables import table


def image(width: int = 2, height: int = 1, **more: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(png(width, height)), **more}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def asking(*parts: Any, **options: Any) -> GenerationRequest:
    """A request with one message of these parts."""
    return GenerationRequest("r1", ChatPrompt(({"role": "user", "content": list(parts)},)), **options)


def run(service: Service, request: GenerationRequest) -> GenerationResult:
    return asyncio.run(service.generate(request))


def prepared(request: GenerationRequest, **parts: Any) -> EngineRequest:
    """The request as its engine gets it."""
    engine = FakeEngine(what_it_sees, capabilities=SEEING)
    run(seeing_service(engine=engine, **parts), request)
    return engine.requests[0]


# --- what becomes of pictures -----------------------------------------------------------------------------------------


def test_each_marker_becomes_the_text_of_its_picture_and_each_span_has_its_placeholders() -> None:
    request = prepared(asking(text("a"), image(2, 2), text("b"), image(3, 1)))
    p = PLACEHOLDER_ID
    assert list(request.prompt_ids) == [*b"[user]a{", p, p, 10, p, p, *b"}b{", p, p, p, *b"}"]
    first, second = request.pictures
    assert (first.begin, first.length, second.begin, second.length) == (8, 5, 16, 3)
    assert pixels_of(first.picture).shape == (2, 2, 3)
    assert pixels_of(second.picture).shape == (1, 3, 3)
    assert (first.detail, second.detail) == ("auto", "auto")


def test_pictures_of_several_messages_keep_their_order() -> None:
    messages = (
        {"role": "system", "content": [image(4, 1)]},
        {"role": "user", "content": [image(2, 1), text("x"), image(3, 1)]},
        {"role": "assistant", "content": "y"},
        {"role": "tool", "content": [image(1, 1)]},
    )
    request = prepared(GenerationRequest("r1", ChatPrompt(messages)))
    assert [span.picture.width for span in request.pictures] == [4, 2, 3, 1]
    ids = request.prompt_ids
    assert all(set(ids[s.begin : s.begin + s.length]) == {PLACEHOLDER_ID} for s in request.pictures)
    assert [span.length for span in request.pictures] == [4, 2, 3, 1]


def test_pictures_of_low_detail_take_less_room() -> None:
    request = prepared(asking(image(3, 3, detail="low"), image(2, 1, detail="high")))
    assert [(span.length, span.detail) for span in request.pictures] == [(1, "low"), (2, "high")]


def test_equal_pictures_have_one_digest_and_others_another() -> None:
    same, again, other = prepared(asking(image(2, 2), image(2, 2), image(2, 1))).pictures
    assert same.picture.digest == again.picture.digest != other.picture.digest


def test_the_prompt_is_told_with_markers_and_counted_with_placeholders() -> None:
    result = run(seeing_service(), asking(text("a"), image(3, 3)))
    assert result.prompt.text == "[user]a<image>"
    assert result.num_prompt_tokens == len("[user]a{}") + 9 + 2
    assert result.sequences[0].text == "3x3 auto at 8+11"


@table("max_inline_chars", [0, 10**9])
def test_a_conversation_with_pictures_can_be_tokenised_without_running_it(max_inline_chars: int) -> None:
    service = seeing_service(limits=ServiceLimits(max_inline_chars=max_inline_chars))
    tokens = asyncio.run(service.tokenize(asking(image(2, 1)).prompt))
    assert tokens.token_ids == (*b"[user]{", PLACEHOLDER_ID, PLACEHOLDER_ID, *b"}")


def test_a_template_that_takes_strings_gets_markers_in_the_text() -> None:
    request = prepared(asking(text("Compare: "), image(1, 1), text("and"), image(2, 1)), chat_template=STRINGS)
    p = PLACEHOLDER_ID
    assert list(request.prompt_ids) == [*b"[user]{", p, *b"}\n{", p, p, *b"}\nCompare: \nand"]


def test_a_text_may_say_itself_where_the_picture_goes() -> None:
    p = PLACEHOLDER_ID
    for template in (STRINGS, PARTS):
        request = prepared(asking(text("See <image> here"), image(2, 1)), chat_template=template)
        assert list(request.prompt_ids) == [*b"[user]See {", p, p, *b"} here"]


def test_numbered_markers_say_which_picture_goes_where() -> None:
    rules = PictureRules(GridProcessor(marker="<{}>"), PLACEHOLDER_ID)
    request = prepared(asking(text("<2> or <1>?"), image(1, 1), image(2, 1)), rules=rules, chat_template=STRINGS)
    p = PLACEHOLDER_ID
    assert list(request.prompt_ids) == [*b"[user]{", p, p, *b"} or {", p, *b"}?"]
    assert [(span.picture.width, span.begin) for span in request.pictures] == [(2, 7), (1, 15)]


def test_texts_around_pictures_may_each_begin_as_texts_do() -> None:
    rules = PictureRules(GridProcessor(), PLACEHOLDER_ID, splits_texts=True)
    request = prepared(
        asking(image(2, 1), image(1, 1), text("a")), rules=rules, tokenizer=SeeingTokenizer(adds_bos=True)
    )
    p, begin = PLACEHOLDER_ID, BOS_ID
    assert list(request.prompt_ids) == [begin, *b"[user]{", p, p, *b"}", begin, *b"{", p, *b"}", begin, *b"a"]
    assert [(span.begin, span.length) for span in request.pictures] == [(8, 2), (13, 1)]


@table(
    "prompt",
    [
        ChatPrompt(({"role": "user", "content": f"<image>{PLACEHOLDER}"},)),
        TextPrompt(f"[user]<image>{PLACEHOLDER}"),
        TokenPrompt((*b"[user]<image>", PLACEHOLDER_ID)),
    ],
    ids=["chat", "text", "tokens"],
)
def test_without_pictures_markers_and_placeholders_are_text(prompt: Any) -> None:
    request = prepared(GenerationRequest("r1", prompt))
    assert list(request.prompt_ids) == [*b"[user]<image>", PLACEHOLDER_ID]
    assert request.pictures == ()


def test_the_answer_may_have_what_is_left_of_the_context() -> None:
    engine = FakeEngine(saying("ok"), capabilities=replace(SEEING, max_model_len=40))
    run(seeing_service(engine=engine), asking(image(4, 4)))
    assert engine.requests[0].max_tokens == 40 - len("[user]{}") - 16 - 3


# --- what is refused --------------------------------------------------------------------------------------------------

TALKATIVE = ChatTemplate("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}")
DEAF = ChatTemplate("{% for m in messages %}[{{ m.role }}]{% endfor %}")


@table(
    ("parts", "options", "service", "error", "says"),
    [
        ([image(), image(), image()], {}, {"max_pictures": 2}, InvalidParameter, r"at most 2 images .* got 3"),
        ([image()], {}, {"max_pictures": 0}, InvalidParameter, r"at most 0 images .* got 1"),
        ([text("x"), image(101, 1)], {}, {}, InvalidParameter, r"\[1\].image_url.url .* at most 100, got 101"),
        ([image(40, 40)], {}, {}, CapacityError, "the pictures of your prompt alone have 1600 tokens"),
        ([image(30, 30), image(30, 30)], {}, {}, CapacityError, "the pictures of your prompt alone have 1800 tokens"),
        ([image(30, 30), text("x" * 200)], {}, {}, CapacityError, "your prompt alone has 1137 tokens"),
        ([image(30, 30)], {"max_tokens": 100}, {}, CapacityError, r"you requested 1037 tokens \(937 in the prompt, 100"),
        ([image()], {"truncate_prompt_tokens": 5}, {}, UnsupportedFeature, "truncate_prompt_tokens 5 .* pictures"),
        ([text(f"a{PLACEHOLDER}"), image()], {}, {}, InvalidRequest, r"must make .* <\|pix\|> 2 times.*, got 3"),
        ([text("<image><image>"), image()], {}, {}, InvalidRequest, "must hold <image> at most 1 times.*, got 2"),
        ([image()], {}, {"chat_template": TALKATIVE}, InvalidRequest, "must make .* 1 times <image>, .* got 2"),
        ([image()], {}, {"chat_template": DEAF}, InvalidRequest, "must make .* 1 times <image>, .* got 0"),
        ([image()], {}, {"chat_template": None}, UnsupportedFeature, "has no chat template"),
        ([{"type": "image_url"}], {}, {}, InvalidRequest, r"content\[0\].image_url must be an object with a url"),
        ([image(detail="most")], {}, {}, InvalidParameter, "detail must be auto, low or high, got 'most'"),
        ([{"type": "video"}], {}, {}, UnsupportedFeature, "of type video is not supported"),
        (
            [{"type": "image_url", "image_url": "data:image/png;base64,?"}],
            {},
            {},
            InvalidParameter,
            r"messages\[0\].content\[0\].image_url.url must be base64",
        ),
        (
            [{"type": "image_url", "image_url": "https://example.com/a.png"}],
            {},
            {},
            InvalidParameter,
            r"messages\[0\].content\[0\].image_url.url",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_on_one_line_before_it_runs(
    parts: list[Any], options: dict[str, Any], service: dict[str, Any], error: type[Exception], says: str
) -> None:
    engine = FakeEngine(what_it_sees, capabilities=SEEING)
    with pytest.raises(error, match=says) as caught:
        run(seeing_service(engine=engine, **service), asking(*parts, **options))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert engine.requests == []


def test_a_marker_in_another_message_is_refused_beside_pictures() -> None:
    messages = ({"role": "user", "content": [image()]}, {"role": "user", "content": "<image>"})
    with pytest.raises(InvalidRequest, match=r"must make .* 1 times <image>, .* got 2"):
        run(seeing_service(), GenerationRequest("r1", ChatPrompt(messages)))


def test_too_many_pictures_are_refused_before_any_is_brought() -> None:
    async def test() -> None:
        loader = HeldLoader()
        with pytest.raises(InvalidParameter):
            await seeing_service(loader, max_pictures=1).generate(asking(image(), image()))
        assert loader.sources == []

    asyncio.run(test())


@table("content", [[text("a"), image()], [image()]])
def test_a_model_that_takes_text_only_says_so_and_names_the_part(content: list[Any]) -> None:
    service = Service(name="m", engine=FakeEngine(saying("x")), tokenizer=ByteTokenizer(), chat_template=STRINGS)
    with pytest.raises(TextOnly, match=r"messages\[0\].content\[\d\] of type image_url is not supported") as caught:
        run(service, asking(*content))
    assert caught.value.param == f"messages[0].content[{len(content) - 1}]"


def test_an_engine_that_does_not_take_pictures_refuses_them_itself() -> None:
    engine = FakeEngine(saying("x"), capabilities=replace(ABILITIES, vocab_size=PLACEHOLDER_ID + 1))
    with pytest.raises(UnsupportedFeature, match="pictures 1 is not supported by this engine: it must be none"):
        run(seeing_service(engine=engine), asking(image()))


class Untouchable(SeeingTokenizer):
    """A tokenizer for prompts that must be refused before anybody tokenises them."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Never called."""
        raise AssertionError(f"{len(text)} characters were tokenised")


def test_what_cannot_fit_is_refused_before_it_is_tokenised() -> None:
    with pytest.raises(CapacityError, match="the pictures of your prompt alone have 10000 tokens"):
        run(seeing_service(tokenizer=Untouchable()), asking(image(100, 100)))


# --- leaving and deadlines --------------------------------------------------------------------------------------------


def bounded(test: Any) -> None:
    async def run_test() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await test()

    asyncio.run(run_test())


def test_cancelling_a_request_ends_the_bringing_of_its_pictures() -> None:
    async def test() -> None:
        loader, engine = HeldLoader(), FakeEngine(what_it_sees, capabilities=SEEING)
        task = asyncio.create_task(seeing_service(loader, engine=engine).generate(asking(image())))
        await loader.begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert loader.num_given_up == 1
        assert engine.requests == []

    bounded(test)


def test_the_deadline_counts_from_before_the_pictures_are_brought() -> None:
    async def test() -> None:
        loader = HeldLoader()
        service = seeing_service(loader, limits=ServiceLimits(request_timeout_s=0.01))
        for work in (service.generate(asking(image())), service.tokenize(asking(image()).prompt)):
            with pytest.raises(RequestTimeout):
                await work
        assert loader.num_given_up == 2

    bounded(test)


def test_others_are_answered_while_pictures_are_brought() -> None:
    async def test() -> None:
        loader = HeldLoader()
        service = seeing_service(loader)
        waiting = asyncio.create_task(service.generate(asking(image())))
        await loader.begun.wait()
        async with aclosing(stream_of(service, asking(text("hi")))) as events:
            assert "".join([event.text async for event in events]) == "nothing"
        loader.gate.set()
        assert (await waiting).sequences[0].text == "1x1 auto at 7+1"

    bounded(test)
