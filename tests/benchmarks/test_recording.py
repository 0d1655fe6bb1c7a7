"""A recorded schedule is what the engine ran, and replaying it runs exactly that again."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from benchmarks.serving import peers
from benchmarks.serving.load import Workload
from benchmarks.serving.processes import JsonWorker
from benchmarks.serving.recording import RecordingRunner, Step, copied, replay
from benchmarks.serving.rows import server_cost
from dragoman.config.resolve import demo_model_dir
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.engine import RollingEngine
from dragoman.engine.rolling.forward.runner import ForwardBatch
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.types import EngineRequest, SamplingParams
from tests.engine.fake_runner import FakeRunner
from tests.support.forward import forward_batch

WORKLOAD = Workload(prompt_tokens=9, output_tokens=4)
CONFIG = RollingConfig(max_batch_tokens=16, max_num_seqs=8)


def same(one: ForwardBatch, other: ForwardBatch) -> bool:
    return all(np.array_equal(getattr(one, item.name), getattr(other, item.name)) for item in fields(ForwardBatch))


async def client(engine: RollingEngine, first: int, requests: int) -> None:
    for number in range(first, first + requests):
        sampling = SamplingParams(temperature=0.0, ignore_eos=True)
        request = EngineRequest(str(number), tuple(WORKLOAD.prompt(number)), sampling, WORKLOAD.output_tokens, seed=0)
        async for _ in engine.generate(request):
            pass


def recorded(runner: FakeRunner, clients: int = 3, requests: int = 2) -> list[Step]:
    async def run() -> list[Step]:
        recorder = RecordingRunner(runner)
        engine = RollingEngine(recorder, Sampler(runner.vocab_size), CONFIG)
        await engine.start()
        try:
            await asyncio.gather(*(client(engine, first, requests) for first in range(0, clients * requests, requests)))
        finally:
            await engine.shutdown(0.0)
        return recorder.steps

    return asyncio.run(run())


def test_the_recorded_steps_hold_every_token_of_the_load() -> None:
    steps = recorded(FakeRunner())
    num_computed = sum(len(step.batch.input_ids) for step in steps)
    assert num_computed == 6 * (9 + 4 - 1)  # the last output token is never an input
    assert sum(len(step.batch.logit_indices) for step in steps) == 6 * 4
    assert max(len(step.batch.past_lens) for step in steps) == 3  # all clients in one step
    assert max(len(step.batch.input_ids) for step in steps) <= CONFIG.max_batch_tokens


def test_a_step_is_recorded_as_it_was_run_though_the_engine_reuses_its_buffers() -> None:
    ran: list[ForwardBatch] = []
    steps = recorded(FakeRunner(before_forward=lambda batch: ran.append(copied(batch))))
    assert len(ran) == len(steps) > 5
    assert all(same(batch, step.batch) for batch, step in zip(ran, steps, strict=True))


def test_a_replay_runs_the_recorded_steps_in_order() -> None:
    steps = recorded(FakeRunner())
    ran: list[ForwardBatch] = []
    assert replay(FakeRunner(before_forward=ran.append), steps) > 0
    assert [id(batch) for batch in ran] == [id(step.batch) for step in steps]


def test_copies_are_kept_with_the_step_that_follows_and_made_before_it() -> None:
    recorder = RecordingRunner(FakeRunner())
    batch = forward_batch([([5, 6], 0, [1])], [1])
    recorder.forward(batch)
    recorder.copy_blocks([(1, 2)])
    recorder.forward(forward_batch([([7], 2, [2])], [0]))
    assert [step.copies for step in recorder.steps] == [[], [(0, [(1, 2)])]]
    runner = FakeRunner()
    replay(runner, recorder.steps)
    assert runner.num_copies == 1


def test_recording_leaves_the_runner_open_for_the_replay() -> None:
    runner = FakeRunner()
    recorded(runner, 1, 1)
    assert not runner.is_closed


@pytest.mark.full("starts the benchmark's own server; the parts of it are tested above")
def test_a_server_whose_steps_are_recorded_replays_those_of_a_load(tmp_path: Path) -> None:
    server = peers.dragoman_server(demo_model_dir(), tmp_path, "--dtype", "f32", "--kv-cache-gb", "0.05")
    arguments = list(server.command)[list(server.command).index("serve") + 1 :]
    command = [sys.executable, "-m", "benchmarks.serving.kernel_worker", *arguments]
    with JsonWorker("recorded", command, tmp_path / "logs") as worker:
        worker.wait_until_ready(server)
        load = Workload(8, 4, vocab_size=4096)
        told = server_cost.measure(worker, server.url, load, clients=1, requests=1)
    assert told.tokens == 8 + 3  # the last token is not computed
    assert told.kernel_tokens_per_s > 0
