"""What must not grow: the cost of a token with the batch, the prompt or the answer; forwards, wake-ups and hops per step."""

from __future__ import annotations

import threading

import pytest

from dragoman.engine.rolling.core import Inbox
from dragoman.engine.rolling.engine import RollingEngine
from dragoman.server.generation.service import Service
from dragoman.server.http.exchange import Exchange
from dragoman.server.responder import respond
from tests.performance.engine_work import NUM_STEPS, EngineRun, EngineWork, count_decode, count_prefill, prompts_of
from tests.performance.http_work import count_stream
from tests.performance.process import CountingProcess
from tests.performance.runners import BLOCK_SIZE, TableRunner, bare_loop

pytestmark = pytest.mark.varies("each Python counts instructions in a way of its own")

STEADY = 1.03  # the same, but for what comes once in a while
SAMPLED = {"temperature": 0.8, "top_k": 50, "top_p": 0.9}


def test_a_token_costs_no_more_in_a_larger_batch(counting: CountingProcess) -> None:
    per_token = {
        rows: counting.run(count_decode, EngineWork(rows)).total / (rows * NUM_STEPS) for rows in (1, 8, 32, 128)
    }
    assert per_token[128] < per_token[32] * STEADY
    assert per_token[32] < per_token[8] * STEADY
    assert per_token[8] < per_token[1]


def test_a_sampled_token_costs_no_more_in_a_larger_batch(counting: CountingProcess) -> None:
    per_token = {rows: counting.run(count_decode, EngineWork(rows, sampling=SAMPLED)).total / rows for rows in (2, 16)}
    assert per_token[16] < per_token[2] * STEADY


@pytest.mark.parametrize("sampling", [{}, SAMPLED, {"logprobs": 5}], ids=["greedy", "sampled", "log-probabilities"])
def test_a_token_costs_the_same_late_in_an_answer(sampling: dict[str, float], counting: CountingProcess) -> None:
    work = EngineWork(2, sampling=sampling)
    early, late = (counting.run(count_decode, work, num_before=size).total for size in (64, 1024))
    assert late < early * STEADY


def test_a_token_costs_the_same_after_a_long_prompt(counting: CountingProcess) -> None:
    short, long = (counting.run(count_decode, EngineWork(2, size)).total for size in (48, 48 + 32 * BLOCK_SIZE))
    assert long < short * STEADY


def test_a_prompt_costs_in_proportion_to_its_length(counting: CountingProcess) -> None:
    """Even in pieces, whose number grows with the prompt: a piece must not look at the ones before it again."""
    short, long = (
        counting.run(count_prefill, EngineWork(4, size, max_batch_tokens=256)).total / size for size in (512, 2048)
    )
    assert long < short * STEADY


def test_streamed_tokens_cost_the_same_late_in_an_answer(counting: CountingProcess) -> None:
    short, long = (counting.run(count_stream, "LMI", num_tokens=size).per_token for size in (64, 512))
    assert long < short * STEADY


def test_a_stream_costs_the_same_beside_others(counting: CountingProcess) -> None:
    alone, beside = (counting.run(count_stream, "OpenAI chat", num_streams, num_tokens=32) for num_streams in (1, 32))
    assert beside.per_token < alone.per_token * STEADY


@pytest.mark.parametrize("num_streams", [1, 4])
def test_the_engine_wakes_once_a_step_and_hops_to_the_event_loop_once(
    num_streams: int, counting: CountingProcess
) -> None:
    costs = counting.run(count_stream, "LMI", num_streams, num_tokens=48, counts_engine=True)
    assert costs.num_forwards in (48, 48 + (num_streams > 1))  # the first step may begin before the last request came
    assert costs.num_hops == costs.num_forwards
    assert costs.engine.num_calls(Inbox.wait) == costs.num_forwards + 1
    # It sleeps before the first request and after the last one, never between two steps.
    assert costs.engine.num_calls(threading.Condition.wait) <= 2


def test_a_token_wakes_the_task_that_writes_it_and_no_other(counting: CountingProcess) -> None:
    few, many = (counting.run(count_stream, "OpenAI chat", 4, num_tokens=size) for size in (32, 64))
    for waiting in (RollingEngine.deliver, Service.run):
        assert many.loop.num_calls(waiting) == few.loop.num_calls(waiting), "they wait for the whole answer"
    assert few.loop.num_calls(Exchange.send_chunk) == 4 * (32 - 1), "the last token goes out with the end"
    num_more = 4 * (64 - 32)
    assert many.loop.num_calls(respond) - few.loop.num_calls(respond) == num_more


@pytest.mark.parametrize(
    ("work", "num_tokens"),
    [
        (EngineWork(1), 64),
        (EngineWork(32), 40),
        (EngineWork(8, prompt_size=600, max_batch_tokens=256), 40),
        (EngineWork(32, prompt_size=200, max_batch_tokens=512), 24),
    ],
    ids=["one", "all at once", "long prompts", "many prompts in pieces"],
)
def test_the_engine_runs_the_model_as_often_as_a_bare_loop(work: EngineWork, num_tokens: int) -> None:
    run = EngineRun(work, num_tokens)
    run.finish()
    bare = TableRunner()
    answers = bare_loop(bare, prompts_of(work), num_tokens, work.max_batch_tokens)
    assert list(run.answers.values()) == answers
    assert [one.row_sizes for one in run.runner.forwards] == [one.row_sizes for one in bare.forwards]


def test_pieces_of_prompts_ride_along_with_every_decoding_row() -> None:
    run = EngineRun(EngineWork(8, prompt_size=1000, max_batch_tokens=256), 64)
    run.finish()
    num_decoding, num_mixed = 0, 0
    for forward in run.runner.forwards:
        assert forward.row_sizes.count(1) == num_decoding, "every row that decodes gets its token in every forward"
        if num_decoding == 8:
            break
        num_mixed += num_decoding > 0
        num_decoding += forward.num_logit_rows - num_decoding  # prompts that are now complete
    assert num_mixed >= 7 * 1000 // 256
