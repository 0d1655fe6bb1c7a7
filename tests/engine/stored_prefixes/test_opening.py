"""Prefixes on disk through the factory, as a server has them: from one engine's end to the next one's start."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dragoman.engine.base import EngineStats
from dragoman.engine.factory import BuiltEngine, EngineOptionError, EngineSetup
from dragoman.engine.rolling.factory import factory
from dragoman.types import EngineOutput
from tests.engine.naive import make_request
from tests.support.live_parts import LIVE_TOOLS
from tests.support.random_checkpoint import RandomShape, write_checkpoint

SHAPE = RandomShape("stored", seed=6, hidden_size=256, head_size=64, intermediate_size=512, head_std=0.3)
PROMPT = [1 + number % 200 for number in range(200)]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(SHAPE, tmp_path_factory.mktemp("model"))


def built(model_dir: Path, directory: Path, **options: object) -> BuiltEngine:
    given = {"prefix_store_gb": 0.5, "prefix_store_dir": directory, "kv_cache_gb": 0.05, "dtype": "f32", **options}
    return factory.load(EngineSetup(model_dir, given)).build(LIVE_TOOLS, 1 << 28)


def run(model_dir: Path, directory: Path, **options: object) -> tuple[list[EngineOutput], EngineStats]:
    """The outputs of one request to an engine that starts and ends."""
    engine = built(model_dir, directory, **options).engine

    async def ask() -> list[EngineOutput]:
        await engine.start()
        outputs = [output async for output in engine.generate(make_request(PROMPT, 6, ignore_eos=True, logprobs=0))]
        await engine.shutdown(5.0)
        return outputs

    return asyncio.run(ask()), engine.stats()


def test_the_next_start_finds_what_this_one_computed_and_no_other_model_does(model_dir: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    first, counted = run(model_dir, store)
    assert first[0].num_stored_tokens == 0
    assert counted.num_stored_written_bytes
    again, counted = run(model_dir, store)
    assert (again[0].num_cached_tokens, again[0].num_stored_tokens, counted.num_stored_hits) == (192, 192, 192)
    assert counted.num_stored_read_bytes
    assert counted.stored_read_s is not None
    assert [(one.token_ids, one.logprobs) for one in again] == [(one.token_ids, one.logprobs) for one in first]
    other, _ = run(model_dir, store, kv_dtype="u8")
    assert other[0].num_stored_tokens == 0


def test_without_the_option_nothing_is_written_or_counted(model_dir: Path, tmp_path: Path) -> None:
    for options in ({"prefix_store_gb": None}, {"prefix_cache": "off"}):
        outputs, counted = run(model_dir, tmp_path / "store", **options)
        assert outputs[0].num_stored_tokens == 0
        assert counted.num_stored_hits is None
    assert not (tmp_path / "store").exists()


def test_the_start_says_what_is_there_and_refuses_what_is_not_its_own(model_dir: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    engine = built(model_dir, store)
    assert f"prompts on disk: 0.0 of 0.5 GB in {store}" in engine.facts
    asyncio.run(engine.engine.shutdown(0.0))
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"")
    with pytest.raises(EngineOptionError, match=r"a\.jpg") as raised:
        factory.load(EngineSetup(model_dir, {"prefix_store_gb": 1.0, "prefix_store_dir": tmp_path / "photos"}))
    assert raised.value.option == "prefix_store_dir"
    assert "\n" not in str(raised.value)
