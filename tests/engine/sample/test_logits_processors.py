"""Each logits processor against values computed by hand, and the sequence state behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dragoman.engine.rolling.sample.logits_processors import PROCESSORS, LogitsProcessor, MaskPrefetcher, grammar_mask
from dragoman.engine.rolling.sample.sampler import Sampler
from tests.support.maskers import ByForks
from tests.support.sampling import make_state, row_of

INF = float("inf")
ROW = (2.0, -1.0, 0.5, 4.0, -3.0)


class OnlyOdd(ByForks):
    """A TokenMasker that allows the odd tokens."""

    def fork(self) -> OnlyOdd:
        return OnlyOdd()

    def fill_mask(self, bitmask_row: Any) -> None:
        bitmask_row[:] = 0xAAAAAAAA

    def advance(self, token_id: int) -> bool:
        return token_id % 2 == 1

    def validate(self, token_ids: Any) -> int:
        return next((n for n, token_id in enumerate(token_ids) if token_id % 2 == 0), len(token_ids))

    @property
    def is_finished(self) -> bool:
        return False


CASES: list[Any] = [
    pytest.param(
        PROCESSORS["repetition_penalty"],
        {"repetition_penalty": 2.0, "prompt_ids": (0, 1, 0), "generated": (3, 3)},
        (1.0, -2.0, 0.5, 2.0, -3.0),
        id="repetition: prompt and generated, once each; positive divided, negative multiplied",
    ),
    pytest.param(
        PROCESSORS["frequency_penalty"],
        {"frequency_penalty": 0.5, "prompt_ids": (0,), "generated": (3, 3, 1)},
        (2.0, -1.5, 0.5, 3.0, -3.0),
        id="frequency: generated only, once per occurrence",
    ),
    pytest.param(
        PROCESSORS["presence_penalty"],
        {"presence_penalty": 0.5, "prompt_ids": (0,), "generated": (3, 3, 1)},
        (2.0, -1.5, 0.5, 3.5, -3.0),
        id="presence: generated only, once",
    ),
    pytest.param(
        PROCESSORS["presence_penalty"],
        {"presence_penalty": -1.0, "repetition_penalty": 2.0, "prompt_ids": (0,), "generated": (4,)},
        (2.0, -1.0, 0.5, 4.0, -2.0),
        id="presence: prompt tokens remembered for another penalty do not count",
    ),
    pytest.param(
        PROCESSORS["logit_bias"],
        {"logit_bias": {1: 2.5, 4: -100.0, 99: 5.0}},
        (2.0, 1.5, 0.5, 4.0, -103.0),
        id="bias: added, ids beyond the vocabulary have no effect",
    ),
    pytest.param(
        PROCESSORS["allowed_tokens"],
        {"allowed_token_ids": (1, 4, 99)},
        (-INF, -1.0, -INF, -INF, -3.0),
        id="allowed: all else masked",
    ),
    pytest.param(
        PROCESSORS["bad_words"],
        {"bad_word_ids": ((3,), (1, 2), (2, 2), (2, 1, 4), (9, 1, 0), ()), "prompt_ids": (2,), "generated": (1,)},
        (2.0, -1.0, -INF, -INF, -INF),
        id="bad words: single tokens always, others when their beginning stands, even in the prompt",
    ),
    pytest.param(
        PROCESSORS["min_tokens"],
        {"min_tokens": 3, "stop_token_ids": (4,), "generated": (1, 2)},
        (-INF, -1.0, 0.5, 4.0, -INF),
        id="minimum length: end and stop tokens masked before",
    ),
    pytest.param(
        PROCESSORS["min_tokens"],
        {"min_tokens": 3, "stop_token_ids": (4,), "generated": (1, 2, 1)},
        ROW,
        id="minimum length: reached",
    ),
    pytest.param(
        PROCESSORS["min_tokens"],
        {"min_tokens": 3, "ignore_eos": True, "generated": ()},
        (-INF, -1.0, 0.5, 4.0, -3.0),
        id="minimum length: holds with ignore_eos too",
    ),
    pytest.param(
        grammar_mask(MaskPrefetcher(5)),
        {"masker": OnlyOdd()},
        (-INF, -1.0, -INF, 4.0, -INF),
        id="grammar: others masked",
    ),
]


@pytest.mark.parametrize(("processor", "case", "expected"), CASES)
def test_processor_gives_the_values_computed_by_hand(
    processor: LogitsProcessor, case: dict[str, Any], expected: tuple[float, ...]
) -> None:
    state = make_state(Sampler(5), **case)
    assert processor.is_needed(state)
    logits = np.repeat(row_of(*ROW), 3, axis=0)
    processor.apply(logits, [1], [state])
    assert logits[1].tolist() == row_of(*expected)[0].tolist()
    assert logits[0].tolist() == logits[2].tolist() == row_of(*ROW)[0].tolist()  # other rows are left alone


@pytest.mark.parametrize(("processor", "case", "expected"), CASES)
def test_a_request_without_the_feature_does_not_need_the_processor(
    processor: LogitsProcessor, case: dict[str, Any], expected: tuple[float, ...]
) -> None:
    assert not processor.is_needed(make_state(Sampler(5)))


@pytest.mark.parametrize(("processor", "case", "expected"), CASES)
def test_rows_of_one_call_are_edited_as_if_alone(
    processor: LogitsProcessor, case: dict[str, Any], expected: tuple[float, ...]
) -> None:
    sampler = Sampler(5)
    used, longer = make_state(sampler, **case), make_state(sampler, **{**case, "generated": (2, 3, 1, 4)})
    together = np.repeat(row_of(*ROW), 2, axis=0)
    processor.apply(together, [0, 1], [longer, used])
    alone = row_of(*ROW)
    processor.apply(alone, [0], [longer])
    assert together[0].tolist() == alone[0].tolist()
    assert together[1].tolist() == row_of(*expected)[0].tolist()


def test_no_repetition_penalty_makes_a_logit_infinite() -> None:
    row = (2.0, -1.0, 0.0, 4.0, -3.0)
    for penalty in (5e-324, 1e-40, 1e39, 1.7e308):
        state = make_state(Sampler(5), repetition_penalty=penalty, prompt_ids=(0, 1, 2, 3, 4))
        logits = row_of(*row)
        PROCESSORS["repetition_penalty"].apply(logits, [0], [state])
        assert np.isfinite(logits).all(), penalty
        assert np.argsort(logits[0]).tolist() == np.argsort(row).tolist(), penalty


def test_only_a_ban_is_an_infinite_bias() -> None:
    """llama.cpp's API takes any number; one beyond f32 gave a warning in the server's log."""
    biases = {0: 1e300, 1: -1e300, 2: 3e38, 3: -INF}
    logits = row_of(*ROW)
    PROCESSORS["logit_bias"].apply(logits, [0], [make_state(Sampler(5), logit_bias=biases)])
    assert np.isfinite(logits[0]).tolist() == [True, True, True, False, True]
    assert np.argsort(logits[0]).tolist() == [3, 1, 4, 2, 0]


def test_a_grammar_mask_reaches_every_bit_of_a_vocabulary_that_fills_no_word() -> None:
    sampler = Sampler(77)
    logits = np.arange(77, dtype=np.float32)[None].copy()
    grammar_mask(MaskPrefetcher(77)).apply(logits, [0], [make_state(sampler, masker=OnlyOdd())])
    assert np.flatnonzero(np.isfinite(logits[0])).tolist() == list(range(1, 77, 2))
    assert logits[0, 75] == 75.0
