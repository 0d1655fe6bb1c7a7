"""Prompts that are kept on disk, as clients see them: what they ask for, what usage tells, and what a restart changes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from dragoman.cli import main
from dragoman.config.resolve import demo_model_dir
from tests.support.patience import PATIENCE_S
from tests.support.server_process import serve

LONG = "Rivers carry water from the mountains to the sea, and what they carry with it they leave on the way. " * 12
MODEL = ("--dtype", "f32", "--max-model-len", "768", "--kv-cache-gb", "0.05", "--max-num-seqs", "4")
MARK: Any = {"type": "ephemeral", "ttl": "1h"}


def anthropic_usage(url: str, key: str = "none") -> Any:
    with anthropic.Anthropic(base_url=url, api_key=key, max_retries=0) as client:
        system: Any = [{"type": "text", "text": LONG, "cache_control": MARK}]
        said: Any = [{"role": "user", "content": "What is a river?"}]
        return client.messages.create(model="demo", max_tokens=1, system=system, messages=said).usage


def openai_answer(url: str, content: str = LONG, key: str = "none", max_tokens: int = 1, **more: Any) -> Any:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        said: Any = [{"role": "system", "content": content}, {"role": "user", "content": "What is a river?"}]
        return client.chat.completions.create(model="demo", max_tokens=max_tokens, messages=said, **more)


def openai_usage(*words: Any, **more: Any) -> Any:
    return openai_answer(*words, **more).usage


def test_a_restart_forgets_only_what_was_to_be_in_memory_alone_and_usage_tells_the_rest(tmp_path: Path) -> None:
    store = ("--prefix-store-gb", "0.2", "--prefix-store-dir", str(tmp_path / "store"))
    streams, private = LONG.replace("Rivers", "Streams"), LONG.replace("Rivers", "Brooks")
    with serve(*MODEL, *store) as server:
        first = anthropic_usage(server.base_url)
        assert first.cache_read_input_tokens == 0
        assert first.cache_creation_input_tokens > 200
        assert first.cache_creation.ephemeral_1h_input_tokens == first.cache_creation_input_tokens
        num_prompt = first.input_tokens + first.cache_creation_input_tokens
        details = openai_usage(server.base_url, streams, prompt_cache_retention="24h").prompt_tokens_details
        assert (details.cached_tokens, details.cache_write_tokens > 100) == (0, True)
        for is_cached in (False, True):
            usage = openai_usage(server.base_url, private, prompt_cache_retention="in_memory")
            assert (usage.prompt_tokens_details.cached_tokens > 100) == is_cached
    with serve(*MODEL, *store) as server:
        again = anthropic_usage(server.base_url)
        assert again.input_tokens + again.cache_creation_input_tokens + again.cache_read_input_tokens == num_prompt
        assert again.cache_read_input_tokens >= num_prompt - 33
        assert again.cache_creation_input_tokens <= 32
        timed = openai_answer(server.base_url, streams, extra_headers={"x-dragoman-timings": "1"})
        num_found = timed.usage.prompt_tokens_details.cached_tokens
        assert timed.timings["stored_n"] == num_found > 100
        assert openai_usage(server.base_url, private).prompt_tokens_details.cached_tokens == 0
    assert f" cached_tokens={num_found} stored_tokens={num_found} " in "".join(server.output)


def test_what_was_computed_before_for_a_key_is_found_by_that_key_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "keys").write_text("alice: k-alice\nbob: k-bob\n", encoding="utf-8")
    beginning: Any = {"messages": [{"role": "system", "content": LONG}, {"role": "user", "content": "?"}]}
    (tmp_path / "agents.jsonl").write_text(json.dumps(beginning) + "\n", encoding="utf-8")
    store = ("--prefix-store-gb", "0.2", "--prefix-store-dir", str(tmp_path / "store"))
    options = (*MODEL, *store, "--api-key-file", str(tmp_path / "keys"))
    assert main(["warm", str(demo_model_dir()), str(tmp_path / "agents.jsonl"), *options, "--key", "alice"]) == 0
    capsys.readouterr()
    with serve(*options) as server:
        assert openai_usage(server.base_url, key="k-bob").prompt_tokens_details.cached_tokens == 0
        assert openai_usage(server.base_url, key="k-alice").prompt_tokens_details.cached_tokens > 200


def test_servers_share_a_directory_and_one_goes_on_when_the_other_is_killed(tmp_path: Path) -> None:
    """What one has computed the other finds, with the same tokens: while both run, and after `kill -9` of the first."""
    store = ("--prefix-store-gb", "0.2", "--prefix-store-dir", str(tmp_path / "store"))
    texts = (LONG, LONG.replace("Rivers", "Streams"))
    with serve(*MODEL, *store) as first:
        computed = [openai_answer(first.base_url, text, seed=1, max_tokens=8) for text in texts]
        assert [answer.usage.prompt_tokens_details.cached_tokens for answer in computed] == [0, 0]
        num_blocks = sum(answer.usage.prompt_tokens // 32 for answer in computed)
        wait_for(lambda: first.metrics()["dragoman_prefix_store_write_seconds_count"] >= num_blocks)
        with serve(*MODEL, *store) as second:
            for number, text in enumerate(texts):
                if number:
                    first.process.kill()
                    first.process.wait()
                found = openai_answer(second.base_url, text, seed=1, max_tokens=8)
                assert found.usage.prompt_tokens_details.cached_tokens > 200
                assert found.choices == computed[number].choices
            assert openai_usage(second.base_url, LONG.replace("Rivers", "Brooks")).completion_tokens == 1
            metrics = second.metrics()
            assert metrics["dragoman_prefix_store_read_bytes_total"] > 0
            wait_for(lambda: second.metrics()["dragoman_prefix_store_written_bytes_total"] > 0)


def wait_for(condition: Callable[[], bool]) -> None:
    """Return when the condition holds. Raises: AssertionError if that takes too long."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)
