"""The offline API, with the demo model."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.config.kinds import Value
from dragoman.config.resolve import ConfigError, demo_model_dir
from dragoman.errors import InvalidRequest, ServerError, TextOnly
from dragoman.llm import LLM
from dragoman.models import ModelError
from dragoman.types import FinishReason, Grammar, SamplingParams
from tests.support.patience import PATIENCE_S


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(dtype="f32", max_num_seqs=8, max_model_len=256) as loaded:  # the same words on every processor
        yield loaded


def texts(llm: LLM, *prompts: str, **options: object) -> list[str]:
    return [result.sequences[0].text for result in llm.generate(prompts, max_tokens=12, **options)]  # type: ignore[arg-type]


def test_prompts_are_answered_in_their_order_and_greedily(llm: LLM) -> None:
    prompts = ["What is a river?", "What is bread?", "Hello"]
    together = texts(llm, *prompts)
    assert together == [texts(llm, prompt)[0] for prompt in prompts]
    assert len(set(together)) == 3


def test_a_single_prompt_may_be_a_plain_text_or_token_ids(llm: LLM) -> None:
    (by_text,) = llm.generate("What is a river?", max_tokens=8)
    (by_ids,) = llm.generate([by_text.prompt.token_ids], max_tokens=8)
    assert by_ids.sequences[0].text == by_text.sequences[0].text
    assert by_text.num_completion_tokens == 8
    assert by_text.sequences[0].finish_reason is FinishReason.LENGTH


def test_sampling_parameters_have_their_effect(llm: LLM) -> None:
    sampling = SamplingParams(temperature=1.0, seed=7, n=3, logprobs=2)
    (result,) = llm.generate(["Once upon a time"], sampling, max_tokens=10)
    (again,) = llm.generate(["Once upon a time"], sampling, max_tokens=10)
    assert [sequence.text for sequence in result.sequences] == [sequence.text for sequence in again.sequences]
    assert len({sequence.text for sequence in result.sequences}) > 1
    assert all(len(token.top) == 2 for token in result.sequences[0].tokens)


def test_a_picture_is_refused_by_a_model_that_takes_text_only(llm: LLM) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with pytest.raises(TextOnly, match=r"messages\[0\].content\[1\] of type image_url is not supported"):
        llm.chat([{"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]}], max_tokens=4)


def test_stop_strings_end_a_text(llm: LLM) -> None:
    (whole,) = texts(llm, "What is a river?")
    stop = whole[5:8]
    (result,) = llm.generate(["What is a river?"], max_tokens=12, stop=[stop])
    assert result.sequences[0].text == whole[: whole.index(stop)]
    assert result.sequences[0].finish_reason is FinishReason.STOP_STRING
    (kept,) = llm.generate(["What is a river?"], max_tokens=12, stop=[stop], include_stop_in_text=True)
    assert kept.sequences[0].text == whole[: whole.index(stop) + len(stop)]


def test_a_conversation_is_continued(llm: LLM) -> None:
    result = llm.chat([{"role": "user", "content": "What is a river?"}], max_tokens=12)
    assert result.sequences[0].text
    assert result.prompt.text.count("What is a river?") == 1
    assert result.prompt.text != "What is a river?", "the chat template is around it"


def test_a_bad_request_is_an_error_and_the_next_one_works(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="vocabulary"):
        llm.generate(["fine", [10**9]], max_tokens=4)
    with pytest.raises(ServerError, match="256"):
        llm.generate(["x " * 1000], max_tokens=1)
    assert texts(llm, "Hello")


def test_calls_from_several_threads_do_not_disturb_each_other(llm: LLM) -> None:
    expected = texts(llm, "What is a river?", "What is bread?")
    found: dict[int, list[str]] = {}
    workers = [
        threading.Thread(target=lambda i=i: found.update({i: texts(llm, "What is a river?", "What is bread?")}))
        for i in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
    assert found == dict.fromkeys(range(4), expected)


def test_with_a_context_shift_an_answer_is_as_long_as_was_asked() -> None:
    greedy = SamplingParams(temperature=0.0, ignore_eos=True)
    with LLM(dtype="f32", max_model_len=64, context_shift=True) as llm:
        (result,) = llm.generate("What is a river?", greedy, max_tokens=150)
        token_ids = [token.id for token in result.sequences[0].tokens]
        read = [*result.prompt.token_ids, *token_ids][:64]
        (again,) = llm.generate([read[31:]], greedy, max_tokens=31)  # of the 63 before the last one half are gone
    num_before = 64 - len(result.prompt.token_ids)
    assert len(token_ids) == 150
    assert token_ids[num_before : num_before + 31] == [token.id for token in again.sequences[0].tokens]


def test_options_are_those_of_the_table() -> None:
    with pytest.raises(
        ConfigError, match=r"max_num_seq=3 \(argument of LLM\): unknown option; the nearest .* max_num_seqs"
    ):
        LLM(max_num_seq=3)
    with pytest.raises(ConfigError, match=r"dtype=int3 \(argument of LLM\): must be one of auto"):
        LLM(dtype="int3")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("kv_cache_gb", 1e-9, r"kv_cache_gb=1e-09 \(argument of LLM\): .* is smaller than one block"),
        (
            "max_model_len",
            4096,
            r"max_model_len=4096 \(argument of LLM\): must be at most 2048, the model's context length",
        ),
        (
            "cache_dir",
            "/dev/null/cache",
            r"cache_dir=/dev/null/cache \(argument of LLM\): must be a directory that can be",
        ),
        ("chat_template", "{% if %}", "chat template default does not compile: line 1"),
    ],
)
def test_an_option_that_does_not_fit_is_refused_with_its_source(option: str, value: Value, message: str) -> None:
    with pytest.raises((ConfigError, ModelError), match=message):
        LLM(**{option: value})  # type: ignore[arg-type]  # an option of the table, not `model` or `progress`


def test_a_chat_template_of_ones_own_takes_the_place_of_the_models(tmp_path: Path) -> None:
    template = "{% for message in messages %}<{{ message.content }}>{% endfor %}"
    path = tmp_path / "own.jinja"
    path.write_text(template, encoding="utf-8")
    for option in (template, str(path)):
        with LLM(chat_template=option, max_model_len=64, max_num_seqs=1) as llm:
            assert llm.chat([{"role": "user", "content": "a"}], max_tokens=1).prompt.text == "<a>"


def test_control_tokens_in_messages_are_texts_where_that_is_wanted() -> None:
    counts = []
    for choice in ("as_is", "plain"):
        with LLM(tokenize_content=choice, max_model_len=64, max_num_seqs=1) as llm:
            counts.append(len(llm.chat([{"role": "user", "content": "<|im_end|>"}], max_tokens=1).prompt.token_ids))
    assert counts[1] > counts[0]


def test_a_directory_that_holds_no_model_is_refused_and_leaves_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(ModelError, match=r"is not a model: there is neither config\.json nor a GGUF file in it"):
        LLM(tmp_path)
    assert threading.active_count() == before


def test_a_closed_model_gives_its_threads_back_and_says_so(tmp_path: Path) -> None:
    before = threading.active_count()
    llm = LLM(max_model_len=64, max_num_seqs=1)
    llm.generate("Hello", SamplingParams(grammar=Grammar("regex", "a{2}")), max_tokens=4)
    grammars = [thread for thread in threading.enumerate() if thread.name.startswith("dragoman-grammars")]
    llm.close()
    llm.close()
    for thread in grammars:
        thread.join(PATIENCE_S)
    assert grammars, "or nothing was compiled beside the event loop"
    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate("Hello")


def test_loading_reports_its_stages_and_the_models_own_sampling_counts(tmp_path: Path) -> None:
    directory = tmp_path / "sampled"
    shutil.copytree(demo_model_dir(), directory)
    path = directory / "generation_config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) | {"do_sample": True, "temperature": 1.5, "top_k": 50}
    path.write_text(json.dumps(settings), encoding="utf-8")
    stages: list[str] = []
    with LLM(directory, progress=lambda stage, _: stages.append(stage), max_model_len=64, max_num_seqs=4) as llm:
        assert llm.config.name == "sampled"
        assert len(set(texts(llm, *["Once upon a time"] * 4))) > 1
    assert {"compiling", "allocating the key/value cache"} <= set(stages)
