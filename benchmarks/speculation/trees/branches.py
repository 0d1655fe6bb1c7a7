"""Guesses of one sequence after the other: the chain that the engine would verify, and other copies as second branches.

Does: ask the engine's own guessers, choose between them as `Speculation` does, find every other place that the text may go
on from, learn how often both hold. Does not: run a model, or decide how much is verified (`__main__` does).
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from operator import mul

from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sequence import AddRequest, SequenceGroup
from dragoman.engine.rolling.sequence import Sequence as EngineSequence
from dragoman.engine.rolling.speculate.copied_text import OwnTextProposer, RecentTextsProposer, copied_evidence
from dragoman.engine.rolling.speculate.estimates import Acceptance
from dragoman.engine.rolling.speculate.match_finder import MAX_LENGTH
from dragoman.engine.rolling.speculate.proposer import NUM_STRENGTHS, Basis, ForcedTokensProposer, Proposal, Wish
from dragoman.types import EngineRequest, SamplingParams, TokenMasker

_MOST_PLACES = 64  # of the last token, the latest first
_VOCAB_SIZE = 2  # the sampler is never asked


@dataclass(frozen=True, slots=True)
class Branch:
    """Guesses with how likely each of them and all before it hold. `parts_at`: those before are the chain's."""

    proposal: Proposal
    survival: Sequence[float]
    parts_at: int = 0

    @property
    def token_ids(self) -> array[int]:
        """The guesses, those that are the chain's included."""
        return self.proposal.token_ids

    @property
    def added(self) -> Sequence[float]:
        """How likely those are that the chain has not."""
        return self.survival[self.parts_at :]


class _Texts:
    """Where each token stands in texts."""

    def __init__(self, basis: Basis) -> None:
        self.basis = basis
        self._texts: list[array[int]] = []
        self._places: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)

    def begin(self) -> None:
        """What comes belongs to another text."""
        self._texts.append(array("q"))

    def extend(self, token_ids: Sequence[int]) -> None:
        """The last text goes on."""
        number, text = len(self._texts) - 1, self._texts[-1]
        for token_id in token_ids:
            self._places[token_id].append((number, len(text)))
            text.append(token_id)

    def copies(self, tail: array[int], most: int) -> Iterator[Proposal]:
        """What followed the latest places of the tail's last token; of a text that is not over itself again and again."""
        places = reversed(self._places.get(tail[-1], []))
        for number, place in islice(places, _MOST_PLACES):
            text, length = self._texts[number], 1
            while length < min(len(tail), place + 1) and text[place - length] == tail[-length - 1]:
                length += 1
            found = text[place + 1 : place + 1 + most]
            while self.basis is Basis.OWN_TEXT and found and len(found) < most:
                found.extend(found[: most - len(found)])
            if found:
                yield Proposal(found, copied_evidence(self.basis, length, len(found)))


class Guesser:
    """Guesses for sequences that come one after the other, all of one caller."""

    def __init__(self) -> None:
        self._proposers = (OwnTextProposer(), RecentTextsProposer(), ForcedTokensProposer())
        self._ended = _Texts(Basis.RECENT_TEXT)
        self._first, self._second = Acceptance(), Acceptance()
        self._own = _Texts(Basis.OWN_TEXT)
        self._sequence_id = 0
        self.sequence = self._sequence((), None)

    def begin(self, prompt: Sequence[int], masker: TokenMasker | None) -> None:
        """The next sequence. `masker`: the start state of its grammar."""
        self._sequence_id += 1
        self.sequence = self._sequence(prompt, masker)
        self._own = _Texts(Basis.OWN_TEXT)
        self._own.begin()
        self._own.extend(prompt)

    def extend(self, token_ids: Sequence[int]) -> None:
        """The sequence goes on."""
        self.sequence.token_ids.extend(token_ids)
        for token_id in token_ids:
            self.sequence.sampler_state.observe(token_id)
        self._own.extend(token_ids)

    def end(self) -> None:
        """The sequence has ended."""
        for proposer in self._proposers:
            proposer.note_finished(self.sequence)
        self._ended.begin()
        self._ended.extend(self.sequence.token_ids)

    def chain(self, most: int) -> Branch:
        """What the engine would verify."""
        wishes = [Wish(self.sequence, most)]
        found = [self._as_chain(self._legal(proposer.propose(wishes)[0])) for proposer in self._proposers]
        return max(found, key=lambda branch: sum(branch.survival))

    def others(self, chain: Branch, most: int) -> list[Branch]:
        """Every other copy that parts from the chain, each once: the longest matches first, of equals the latest."""
        tail = self.sequence.token_ids[-MAX_LENGTH:]
        copies = [*self._own.copies(tail, most), *self._ended.copies(tail, most)]
        copies.sort(key=lambda copy: -(copy.evidence[0] % NUM_STRENGTHS))
        found: dict[tuple[int, ...], Branch] = {}
        for copy in copies:
            branch = self._as_second(self._legal(copy), chain)
            if branch is not None:
                found.setdefault(tuple(copy.token_ids[: branch.parts_at + 1]), branch)
        return list(found.values())

    def judge(self, chain: Branch, second: Branch | None, truth: array[int]) -> None:
        """Learn from what the sequence goes on with; the second branch counts where the chain does not hold."""
        num_held = self._judge_by(self._first, chain, truth, 0)
        if second is not None and num_held == second.parts_at:
            self._judge_by(self._second, second, truth, num_held)

    def _judge_by(self, acceptance: Acceptance, branch: Branch, truth: array[int], begin: int) -> int:
        """Tokens that hold. Those before `begin` are known to."""
        proposal, place = branch.proposal, begin
        for place in range(begin, min(len(proposal.token_ids), len(truth))):
            holds = proposal.token_ids[place] == truth[place]
            acceptance.judge(self._sequence_id, proposal.evidence[place], holds=holds)
            if not holds:
                return place
        return len(proposal.token_ids)

    def _shares(self, acceptance: Acceptance, kinds: Sequence[int]) -> Iterator[float]:
        for kind in kinds:
            yield acceptance.share(kind, acceptance.factor(self._sequence_id, kind))

    def _legal(self, proposal: Proposal) -> Proposal:
        masker = self.sequence.sampler_state.masker
        if masker is None:
            return proposal
        num_legal = masker.validate(proposal.token_ids.tolist())
        return Proposal(proposal.token_ids[:num_legal], proposal.evidence[:num_legal])

    def _as_chain(self, proposal: Proposal) -> Branch:
        return Branch(proposal, list(accumulate(self._shares(self._first, proposal.evidence), mul)))

    def _as_second(self, copy: Proposal, chain: Branch) -> Branch | None:
        """None if it does not part from the chain."""
        pairs = enumerate(zip(copy.token_ids, chain.token_ids, strict=False))
        parts_at = next((place for place, (own, other) in pairs if own != other), None)
        if parts_at is None:
            return None
        before = chain.survival[parts_at - 1] if parts_at else 1.0
        fails = before - chain.survival[parts_at]
        own = accumulate(self._shares(self._second, copy.evidence[parts_at:]), mul, initial=fails)
        next(own)
        return Branch(copy, [*chain.survival[:parts_at], *own], parts_at)

    def _sequence(self, prompt: Sequence[int], masker: TokenMasker | None) -> EngineSequence:
        number = self._sequence_id
        request = EngineRequest(str(number), tuple(prompt), SamplingParams(), MAX_LENGTH, 0)
        group = SequenceGroup(AddRequest(number, request, masker), number, Sampler(_VOCAB_SIZE))
        return group.sequences[0]
