"""The step log: what the steps of an engine come to in a file."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from dragoman.engine.factory import EngineOptionError
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.engine import RollingEngine
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.step_log import StepLog, read_step_log
from dragoman.types import EngineRequest, SamplingParams
from tests.engine.fake_runner import FakeRunner
from tests.support.letters import VOCAB_SIZE, letter_tools


async def answered(log: StepLog, prompt_tokens: int, output_tokens: int) -> None:
    """One request, answered by an engine whose steps are logged."""
    engine = RollingEngine(FakeRunner(vocab_size=VOCAB_SIZE), Sampler(VOCAB_SIZE), RollingConfig(), (), letter_tools())
    engine.log_steps(log)
    await engine.start()
    request = EngineRequest(
        "a", tuple(range(1, prompt_tokens + 1)), SamplingParams(ignore_eos=True), output_tokens, seed=0
    )
    async for _ in engine.generate(request):
        pass
    await engine.shutdown(1.0)


def test_a_log_holds_each_step_with_its_work(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    path.write_text("of an earlier start\n")
    asyncio.run(answered(StepLog(path), 5, 4))
    steps = read_step_log(path)
    assert [(step.work.num_tokens, step.work.num_rows) for step in steps] == [(5, 1), (1, 1), (1, 1), (1, 1)]
    assert [step.work.contexts for step in steps] == [(0.0,), (6.0,), (7.0,), (8.0,)]
    assert steps[0].work.pairs == (15.0,)
    assert all(step.seconds > 0 for step in steps)
    assert all(before.end_s <= after.begin_s for before, after in pairwise(steps))


def test_what_is_not_whole_yet_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    asyncio.run(answered(StepLog(path), 5, 4))
    path.write_bytes(path.read_bytes()[:-3])
    assert len(read_step_log(path)) == 3


def test_two_engines_do_not_write_one_log(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    log = StepLog(path)
    with pytest.raises(EngineOptionError, match="that no other model writes its steps to") as raised:
        StepLog(path)
    assert raised.value.option == "step_log"
    log.close()
    StepLog(path).close()


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineOptionError, match="must be a file that can be written"):
        StepLog(tmp_path / "nowhere" / "steps")


def test_an_engine_outlives_its_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A full disk ends the log, and nothing else."""
    path = tmp_path / "steps"
    path.symlink_to("/dev/full")
    asyncio.run(answered(StepLog(path), 5, 4))
    assert "the step log ends here" in caplog.text
