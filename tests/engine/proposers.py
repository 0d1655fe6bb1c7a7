"""Proposers, draft runners and a grammar for the tests of speculation."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dragoman.engine.rolling.forward.runner import ForwardBatch
from dragoman.engine.rolling.speculate.draft_model import DraftModelProposer
from dragoman.engine.rolling.speculate.proposer import Basis, Proposal, Proposer, Wish, evidence
from dragoman.types import EngineRequest, TokenMasker
from tests.engine.fake_runner import PLAIN, FakeModel, FakeRunner, Logits, last_logits
from tests.engine.naive import naive_sequence
from tests.support.maskers import ByForks


class FunctionProposer(Proposer):
    """Proposes what a function says, and remembers every wish."""

    def __init__(self, guess: Callable[[Wish], Sequence[int]]) -> None:
        self.limits: list[int] = []
        self.wishes: list[Wish] = []
        self.is_closed = False
        self._guess = guess

    def propose(self, wishes: Sequence[Wish]) -> list[Proposal]:
        """One call of the function per wish."""
        self.limits += [wish.max_tokens for wish in wishes]
        self.wishes += wishes
        return [proposal(self._guess(wish)) for wish in wishes]

    def close(self) -> None:
        """Remember that it was called."""
        self.is_closed = True


def proposal(token_ids: Sequence[int]) -> Proposal:
    """These guesses, as if they had followed a long run of equal tokens."""
    return Proposal(array("q", token_ids), [evidence(Basis.OWN_TEXT, 31)] * len(token_ids))


class Oracle:
    """Knows the answers, and lies about some tokens: a share of `num_wrong` in 8, always the same ones."""

    def __init__(self, vocab_size: int, num_wrong: int, model: FakeModel = PLAIN) -> None:
        self._vocab_size = vocab_size
        self._model = model
        self._num_wrong = num_wrong
        self._answers: dict[tuple[int, int], list[int]] = {}

    def __call__(self, wish: Wish) -> list[int]:
        """The next tokens of the wish's sequence, more or less."""
        sequence = wish.sequence
        answer = self._answer(sequence.group.request, sequence.index)
        begin = sequence.num_generated_tokens
        drafts = answer[begin : begin + wish.max_tokens]
        return [self._spoilt(begin + offset, token_id) for offset, token_id in enumerate(drafts)]

    def _answer(self, request: EngineRequest, index: int) -> list[int]:
        key = (id(request), index)
        if key not in self._answers:
            self._answers[key] = naive_sequence(request, index, self._vocab_size, self._model).token_ids
        return self._answers[key]

    def _spoilt(self, position: int, token_id: int) -> int:
        is_wrong = (position * 5 + token_id) % 8 < self._num_wrong
        return (token_id + 1) % self._vocab_size if is_wrong else token_id


class CheckedDraft(DraftModelProposer):
    """A draft model that is the model itself, and notes every proposal that is not what it would say after this text."""

    def __init__(self, runner: FakeRunner, target: FakeRunner) -> None:
        super().__init__(runner, target)
        self._model = runner.model
        self.mistakes: list[tuple[list[int], list[int]]] = []

    def propose(self, wishes: Sequence[Wish]) -> list[Proposal]:
        """As the draft model does."""
        proposals = super().propose(wishes)
        for wish, guessed in zip(wishes, proposals, strict=True):
            text, draft_ids = wish.sequence.token_ids.tolist(), guessed.token_ids
            for draft_id in draft_ids:
                if draft_id != int(last_logits(text, self._runner.vocab_size, self._model).argmax()):
                    self.mistakes.append((text, draft_ids.tolist()))
                text.append(draft_id)
        return proposals


class SlipperyRunner(FakeRunner):
    """A draft model that is right in two of three positions."""

    def forward(self, batch: ForwardBatch) -> Logits:
        """The logits of the model itself, turned by one token where their sum says so."""
        logits = super().forward(batch)
        wrong = (logits.sum(axis=1) * 1000).astype(np.int64) % 3 == 0
        logits[wrong] = np.roll(logits[wrong], 1, axis=1)
        return logits


class NoSumOfThree(ByForks):
    """A grammar: no token together with the one before it may be a multiple of three. It is never finished."""

    def __init__(self, last: int = 1) -> None:
        self._last = last

    def fork(self) -> TokenMasker:
        """A copy."""
        return NoSumOfThree(self._last)

    def fill_mask(self, bitmask_row: Any) -> None:
        """Clear the bit of every third token."""
        bits = [int((token_id + self._last) % 3 != 0) for token_id in range(32)]
        bitmask_row[:] = int("".join(map(str, reversed(bits))), 2)

    def advance(self, token_id: int) -> bool:
        """Move on if the token is allowed."""
        if (token_id + self._last) % 3 == 0:
            return False
        self._last = token_id
        return True

    def validate(self, token_ids: Sequence[int]) -> int:
        """How many of the tokens could follow."""
        position = NoSumOfThree(self._last)
        for count, token_id in enumerate(token_ids):
            if not position.advance(token_id):
                return count
        return len(token_ids)

    @property
    def is_finished(self) -> bool:
        """Never."""
        return False
