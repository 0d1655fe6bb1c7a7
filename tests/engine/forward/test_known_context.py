"""What kernels are told of contexts that grow."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from dragoman.config.resolve import demo_model_dir
from dragoman.engine.rolling.forward.openvino_runner import KnownContext, OpenVinoRunner
from dragoman.models import ModelOptions, load_model
from tests.support.forward import forward_batch


def test_a_sequence_that_grows_token_by_token_has_kernels_made_a_few_times() -> None:
    known = KnownContext(131_072)
    told = [known.tell(length) for length in range(1, 20_001)]
    assert all(said >= length for length, said in enumerate(told, start=1))
    assert len(set(accumulate(told, max))) < 40  # of 625 blocks


def test_what_is_no_longer_than_before_is_told_as_it_is() -> None:
    known = KnownContext(131_072)
    longest = known.tell(5000)
    assert longest > 5000
    assert [known.tell(length) for length in (1, 700, 4999, 5001, longest)] == [1, 700, 4999, 5001, longest]


def test_nothing_longer_than_the_models_context_is_told_of_a_shorter_one() -> None:
    assert KnownContext(300).tell(257) == 300


def test_a_step_beyond_the_models_context_is_told_as_it_is() -> None:
    known = KnownContext(300)
    assert [known.tell(length) for length in (301, 302)] == [301, 302]


def test_logits_are_the_same_bits_whatever_was_known_before() -> None:
    loaded = load_model(demo_model_dir(), ModelOptions())
    tokens = list(range(2, 92))
    found = []
    for lengths in ((), (200,), (91, 91)):  # of steps that have kernels made
        runner = OpenVinoRunner(loaded, 8)
        for length in lengths:
            runner.forward(forward_batch([(tokens[:5], length - 5, range(7))], [4]))
        prompt = runner.forward(forward_batch([(tokens, 0, range(3))], [89])).copy()
        found.append((prompt, runner.forward(forward_batch([([7], 90, range(3))], [0])).copy()))
        runner.close()
    for prompt, decoded in found[1:]:
        assert np.array_equal(prompt, found[0][0])
        assert np.array_equal(decoded, found[0][1])
