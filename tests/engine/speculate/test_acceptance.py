"""How often guesses hold, as it is learned."""

from __future__ import annotations

import pytest

from dragoman.engine.rolling.speculate.estimates import Acceptance
from dragoman.engine.rolling.speculate.proposer import NUM_STRENGTHS, Basis, evidence

COPY = evidence(Basis.OWN_TEXT, 4)


def judge(acceptance: Acceptance, sequence_id: int, share: float, count: int = 200) -> None:
    """So many guesses, of which this share holds."""
    held = 0.0
    for number in range(1, count + 1):
        holds = held < share * number
        held += holds
        acceptance.judge(sequence_id, COPY, holds=holds)


def share_of(acceptance: Acceptance, sequence_id: int, kind: int = COPY) -> float:
    return acceptance.share(kind, acceptance.factor(sequence_id, kind))


@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_shares_become_what_they_are(share: float) -> None:
    acceptance = Acceptance()
    judge(acceptance, 1, share)
    assert share_of(acceptance, 1) == pytest.approx(share, abs=0.15)
    assert share_of(acceptance, 2) == pytest.approx(share, abs=0.1), "for sequences of which nothing is known, too"


def test_before_anything_is_known_longer_runs_are_surer() -> None:
    for basis in (Basis.OWN_TEXT, Basis.RECENT_TEXT, Basis.DRAFT_MODEL):
        shares = [share_of(Acceptance(), 1, evidence(basis, strength)) for strength in range(NUM_STRENGTHS)]
        assert shares == sorted(shares)
        assert 0 < shares[0] < shares[-1] < 1


def test_what_is_forced_is_certain_and_stays_so() -> None:
    acceptance, forced = Acceptance(), evidence(Basis.FORCED)
    acceptance.judge(1, forced, holds=False)
    assert share_of(acceptance, 1, forced) == 1.0


def test_a_sequence_that_does_worse_than_others_is_trusted_less_and_again_when_it_does_better() -> None:
    acceptance = Acceptance()
    judge(acceptance, 1, 0.9)
    judge(acceptance, 2, 0.1, count=10)
    assert share_of(acceptance, 2) < 0.35
    assert share_of(acceptance, 1) > 0.6
    judge(acceptance, 2, 1.0, count=15)
    assert share_of(acceptance, 2) > 0.7


def test_a_sequence_that_has_ended_is_forgotten() -> None:
    acceptance = Acceptance()
    judge(acceptance, 1, 0.1, count=10)
    acceptance.retain([])
    assert acceptance.factor(1, COPY) == 1.0


def test_strengths_beyond_the_last_count_as_the_last() -> None:
    assert evidence(Basis.OWN_TEXT, 99) == evidence(Basis.OWN_TEXT, NUM_STRENGTHS - 1) < evidence(Basis.RECENT_TEXT)
