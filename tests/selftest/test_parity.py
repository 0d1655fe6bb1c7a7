"""The self-test finds nothing in a sound engine, and finds what is made to be wrong with one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from dragoman.config.resolve import demo_model_dir, resolve
from dragoman.config.sources import Given
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.factory import factory
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.forward.runner import ForwardBatch
from dragoman.host.loading import engine_setup
from dragoman.tools.selftest.generating import num_blocks
from dragoman.tools.selftest.parity import Answer, Parity, difference

PROMPTS = [[(7 * place + 11 * number) % 900 + 20 for place in range(70 - 20 * number)] for number in range(3)]
LIMITS = RollingConfig(max_num_seqs=8, prefix_cache="off")
TOLERANCE = 1e-3

Spoil = Callable[[ForwardBatch, np.ndarray[Any, Any]], None]


class SpoiledRunner:
    """A sound runner whose logits are then spoilt."""

    def __init__(self, runner: OpenVinoRunner, spoil: Spoil) -> None:
        self._runner = runner
        self._spoil = spoil
        self.block_size, self.pools, self.vocab_size = runner.block_size, runner.pools, runner.vocab_size
        self.max_model_len, self.long_context_from = runner.max_model_len, runner.long_context_from

    def forward(self, batch: ForwardBatch) -> Any:
        logits = self._runner.forward(batch)
        self._spoil(batch, logits)
        return logits

    def copy_blocks(self, pairs: Sequence[tuple[int, int]], kind: int = 0) -> None:
        self._runner.copy_blocks(pairs, kind)

    def close(self) -> None:
        """The runner is the fixture's."""


@pytest.fixture(scope="module")
def runner() -> Iterator[OpenVinoRunner]:
    given = [Given(name, f"option.{name}", "f32", "a test") for name in ("dtype", "kv_dtype")]
    loaded = factory.load(engine_setup(resolve(given, {}, demo_model_dir())))
    made = OpenVinoRunner(loaded.model, num_blocks(PROMPTS, loaded.model.profile.block_size))
    yield made
    made.close()


def verdicts(runner: OpenVinoRunner, spoil: Spoil) -> dict[str, str]:
    checks = Parity(SpoiledRunner(runner, spoil), LIMITS, PROMPTS, TOLERANCE).checks()
    return {check.name: check.verdict for check in checks}


def off(runner: OpenVinoRunner, spoil: Spoil) -> set[str]:
    return {name for name, verdict in verdicts(runner, spoil).items() if verdict == "off"}


def test_a_sound_engine_passes(runner: OpenVinoRunner) -> None:
    found = verdicts(runner, lambda batch, logits: None)
    assert len(found) == 6
    assert set(found.values()) == {"ok"}


def test_logits_that_depend_on_the_batch_are_found(runner: OpenVinoRunner) -> None:
    def spoil(batch: ForwardBatch, logits: np.ndarray[Any, Any]) -> None:
        logits[:, 5] += 3.0 * (len(batch.past_lens) - 1)

    assert off(runner, spoil) >= {"batched as alone", "same seed beside others"}


def test_pieces_that_are_computed_otherwise_are_found(runner: OpenVinoRunner) -> None:
    def spoil(batch: ForwardBatch, logits: np.ndarray[Any, Any]) -> None:
        sequences = np.searchsorted(batch.subsequence_begins, batch.logit_indices, side="right") - 1
        is_end = batch.position_ids[batch.logit_indices] == len(PROMPTS[0]) - 1
        logits[is_end & (batch.past_lens[sequences] > 0)] *= 0.5  # the last piece of a prompt that is not its first

    assert {"prompt in pieces as whole", "cached prefix as fresh"} <= off(runner, spoil)


def test_what_differs_from_time_to_time_is_found(runner: OpenVinoRunner) -> None:
    noise = np.random.default_rng(1)

    def spoil(batch: ForwardBatch, logits: np.ndarray[Any, Any]) -> None:
        logits += noise.normal(scale=1e-5, size=logits.shape).astype(np.float32)

    assert off(runner, spoil) == {"same answer twice", "same seed twice"}  # too little for the others


def test_another_token_counts_only_beyond_a_tie() -> None:
    one = Answer([1, 2, 3], [-0.1, -0.2, -0.3], [1.0, 0.01, 2.0])
    other = Answer([1, 4, 9], [-0.1001, -0.2, -9.0], [1.0, 0.02, 2.0])
    found = difference(one, other)
    assert (found.diverged, found.gap) == (1, 0.02)
    assert found.logprob == pytest.approx(1e-4)
    assert difference(one, one).diverged is None
