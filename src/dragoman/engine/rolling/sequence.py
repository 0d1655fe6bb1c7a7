"""The mutable progress of a request: its sequence group and the sequences in it.

Changed only by the scheduler and by `update`, on the engine thread. The first sequence computes the prompt; then the
others fork from it, and each is scheduled, preempted and finished on its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

import msgspec

from dragoman.engine.rolling.beam_rows import BeamGroup
from dragoman.engine.rolling.blocks.block_manager import extend_digests, root_digest
from dragoman.engine.rolling.pictures import PromptPictures
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sample.sampler_state import SamplerState
from dragoman.types import (
    AnswerWatch,
    EngineRequest,
    FinishReason,
    Logprob,
    PromptLogprob,
    StopCriterion,
    TokenMasker,
)


class SequenceStatus(Enum):
    """Only a running sequence holds blocks."""

    UNFORKED = auto()  # waits for its group's prompt to be computed by the first sequence
    WAITING = auto()  # new, or preempted
    RUNNING = auto()
    FINISHED = auto()


class Sequence:
    """One growing list of tokens: `token_ids` = prompt + generated + draft tokens.

    The last `num_draft_tokens` still have to be verified. The cache holds the first `num_computed_tokens`. After its
    context has been shifted, `token_ids` are those that the model still reads, and count as its prompt; the tokens
    generated before that are also in `earlier_ids`.
    """

    def __init__(self, group: SequenceGroup, index: int, sequence_id: int, sampler_state: SamplerState) -> None:
        self.group = group
        self.index = index
        self.sequence_id = sequence_id
        self.rank = (-group.priority, _NOT_BEGUN, index)  # the smallest is scheduled first
        self.sampler_state = sampler_state
        self.token_ids = array("q", group.request.prompt_ids)
        self.num_prompt_tokens = len(group.request.prompt_ids)
        self.earlier_ids = array("q")
        self.num_computed_tokens = 0
        self.num_draft_tokens = 0
        self.num_verified_drafts = 0  # both since the request's arrival
        self.num_accepted_drafts = 0
        self.num_preemptions = 0
        self.is_held = False  # a beam that waits for its siblings
        self._forget_loads()
        self.is_long = False  # its tokens are computed in the long regime
        self.status = SequenceStatus.UNFORKED if index else SequenceStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.cumulative_logprob = 0.0
        self.logprobs: list[float] = []  # both only for groups that are ranked at the end
        self.top_logprobs: list[list[Logprob]] = []
        self.digests: list[bytes] = []  # of full blocks at the front; extended on demand

    @property
    def is_decoding(self) -> bool:
        """True if only its last token and the drafts are still to be computed. Never for a held beam."""
        return self.num_computed_tokens + self.num_draft_tokens == len(self.token_ids) - 1

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_generated_tokens(self) -> int:
        """Sampled and accepted tokens, including those before a shift."""
        return len(self.earlier_ids) + len(self.token_ids) - self.num_draft_tokens - self.num_prompt_tokens

    @property
    def generated_ids(self) -> array[int]:
        return self.earlier_ids + self.token_ids[self.num_prompt_tokens : len(self.token_ids) - self.num_draft_tokens]

    @property
    def num_left(self) -> int:
        """The most tokens that it can generate before it ends or its context is shifted."""
        request = self.group.request
        num_left = request.max_tokens - self.num_generated_tokens
        if request.shift is None:
            return num_left
        return min(num_left, request.shift.longest - len(self.token_ids) + self.num_draft_tokens)

    @property
    def is_full(self) -> bool:
        """True if its context must be shifted before the next step. It must have no drafts."""
        shift = self.group.request.shift
        return shift is not None and len(self.token_ids) >= shift.longest

    @property
    def is_shifted(self) -> bool:
        return bool(self.earlier_ids)

    def set_drafts(self, draft_ids: array[int]) -> None:
        """Append drafts, in place of earlier ones."""
        self.drop_drafts()
        self.token_ids.extend(draft_ids)
        self.num_draft_tokens = len(draft_ids)

    def drop_drafts(self) -> None:
        """Remove all drafts; their computed slots are rewritten later."""
        if self.num_draft_tokens:
            del self.token_ids[-self.num_draft_tokens :]
            self.num_draft_tokens = 0
            self.num_computed_tokens = min(self.num_computed_tokens, len(self.token_ids))

    @property
    def draft_ids(self) -> list[int]:
        return self.token_ids[-self.num_draft_tokens :].tolist() if self.num_draft_tokens else []

    def take_drafts(self) -> list[int]:
        draft_ids = self.draft_ids
        self.drop_drafts()
        return draft_ids

    def end_reason(self, token_id: int) -> FinishReason | None:
        """The reason to end with `token_id` as the next token, None to go on; ignores limits of length."""
        group = self.group
        reason = group.end_reasons.get(token_id)
        # The sampler bans end tokens before `min_tokens`; one that comes all the same is the only token that a grammar
        # allowed.
        if reason is not None and (self._may_end or self.sampler_state.masker is not None):
            return reason
        watch = self.sampler_state.watch
        if watch is not None and watch.ends_with(token_id) and self._may_end:
            return FinishReason.REPETITION
        criterion = group.stop_criterion
        if criterion is None:
            return None
        generated_ids = self.generated_ids
        generated_ids.append(token_id)
        return FinishReason.STOP_STRING if criterion(generated_ids) else None

    @property
    def _may_end(self) -> bool:
        return self.num_generated_tokens + 1 >= self.group.request.sampling.min_tokens

    def extend_digests(self, block_size: int, num_blocks: int) -> None:
        group = self.group
        root = group.root_digest_of(is_long=True) if self.is_long else group.root_digest
        keys = None if group.pictures is None else group.picture_keys(block_size)
        extend_digests(self.digests, self.token_ids, block_size, num_blocks, root, keys)

    def copy_progress(self, other: Sequence) -> None:
        """Copy a sibling's tokens and all that follows from them; keep status and blocks."""
        self.token_ids = array("q", other.token_ids)
        self.num_computed_tokens = other.num_computed_tokens
        self.is_long = other.is_long
        self.sampler_state = other.sampler_state.fork(self.index)
        self.cumulative_logprob = other.cumulative_logprob
        self.logprobs = other.logprobs.copy()
        self.top_logprobs = other.top_logprobs.copy()
        self.digests = other.digests.copy()

    def become_long(self) -> None:
        self.is_long = True
        self.num_computed_tokens = 0
        self.digests = []
        self._forget_loads()

    def shift(self) -> int:
        """Drop the tokens that a full context has no room for; the rest becomes the prompt, to be computed again.

        Returns the number of tokens at its front whose blocks and digests are still valid.
        """
        assert self.group.request.shift is not None
        dropped = self.group.request.shift.dropped()
        num_same = 0 if self.is_long else min(dropped.start, self.num_prompt_tokens)
        self.earlier_ids = self.generated_ids
        del self.token_ids[dropped.start : dropped.stop]
        self.num_prompt_tokens = len(self.token_ids)
        self.num_computed_tokens = 0
        self.is_long = False
        return num_same

    def reset(self) -> None:
        self.drop_drafts()
        self.num_computed_tokens = 0
        self.status = SequenceStatus.WAITING
        self._forget_loads()

    def _forget_loads(self) -> None:
        """Allow further loads from disk: one by joining a load for another request, then one of its own."""
        self.has_loaded = self.has_joined = False
        self.num_in_memory: int | None = None  # its cached tokens when it began to wait for a load


NO_SLOT = -1  # of a sequence without an adapter


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """An adapter as one request uses it. `key`: a digest of its content, equal in all processes."""

    name: str
    slot: int
    key: str


Due = tuple[float | None, float | None]
"""A request's deadline, and when it must have begun, in seconds; None = no such time."""


class AddRequest(msgspec.Struct, frozen=True):
    """The command to run `request`, with what is prepared outside the engine thread because it is slow.

    `key` identifies the request inside the engine. `masker`: its grammar's start state. `stop_criterion` None = the
    reader of the outputs watches for stop strings. `watch`: watches its reasoning and repetitions. `due`: on the
    engine's clock.
    """

    key: int
    request: EngineRequest
    masker: TokenMasker | None = None
    stop_criterion: StopCriterion | None = None
    pictures: PromptPictures | None = None
    adapter: AdapterUse | None = None
    watch: AnswerWatch | None = None
    due: Due | None = None


class SequenceGroup:
    """The sequences of one request, and their shared data.

    `is_ranked`: more sequences are drawn than returned; the best are delivered when all have finished. `root_digest`:
    the start of its blocks' digests in the short regime. `priority`: lower than all others for one in the background.
    """

    def __init__(self, command: AddRequest, arrival: int, sampler: Sampler, beams: BeamGroup | None = None) -> None:
        request, sampling = command.request, command.request.sampling
        assert (beams is None) == (sampling.num_beams == 1)
        self.key = command.key
        self.arrival = arrival
        self.request = request
        self.is_background = request.is_background
        self.priority = request.priority - (_BACKGROUND if request.is_background else 0)
        self.is_ranked = request.is_ranked
        self.is_forked = sampling.num_sequences == 1
        self.end_reasons = request.end_reasons()
        self.beams = beams
        self.stop_criterion = command.stop_criterion
        self.adapter = command.adapter
        self.root_digest = self.root_digest_of(is_long=False)
        self.num_cached_tokens = 0
        self.num_stored_tokens = 0  # of these, the tokens loaded from disk for it
        self.is_charged = False  # whether its caller has paid for the prompt
        self.arrival_s = 0.0
        self.queue_s: float | None = None  # from arrival to its first step
        self.pictures = command.pictures
        self._picture_keys: dict[int, bytes] | None = None
        self.has_begun = False
        self.prompt_logprobs: list[PromptLogprob | None] | None = None if sampling.prompt_logprobs is None else [None]
        self.has_reported_prompt = False
        state = sampler.new_state(_with_ranking(request), 0, command.masker, command.watch)
        states = [state, *(state.fork(index) for index in range(1, sampling.num_sequences))]
        first_id = arrival * _MAX_SEQUENCES
        self.sequences = [Sequence(self, index, first_id + index, state) for index, state in enumerate(states)]

    def begin(self, order: int) -> None:
        self.has_begun = True
        for sequence in self.sequences:
            sequence.rank = (-self.priority, order, sequence.index)

    def root_digest_of(self, *, is_long: bool) -> bytes:
        adapter = "" if self.adapter is None else self.adapter.key
        return root_digest(self.request.cache_partition, adapter, is_long=is_long)

    def picture_keys(self, block_size: int) -> dict[int, bytes]:
        if self._picture_keys is None:
            self._picture_keys = {} if self.pictures is None else self.pictures.block_keys(block_size)
        return self._picture_keys

    @property
    def needs_prompt_logprobs(self) -> bool:
        return self.prompt_logprobs is not None and len(self.prompt_logprobs) < len(self.request.prompt_ids)

    @property
    def num_prompt_end_rows(self) -> int:
        """Rows of logits at the prompt's end: one for all beams, or one per sampled sequence."""
        return 1 if self.beams is not None else len(self.sequences)

    @property
    def num_unforked(self) -> int:
        return 0 if self.is_forked else len(self.sequences) - 1

    @property
    def is_finished(self) -> bool:
        return all(sequence.finish_reason is not None for sequence in self.sequences)

    def live_sequences(self) -> Iterator[Sequence]:
        return (sequence for sequence in self.sequences if sequence.finish_reason is None)


_BACKGROUND = 1 << 48  # more than clients can request
_MAX_SEQUENCES = 1 << 16  # of one group; keeps sequence ids unique
_NOT_BEGUN = 1 << 62  # the order of groups that have not begun


def _with_ranking(request: EngineRequest) -> EngineRequest:
    """Ranking needs log-probabilities, even if the client does not."""
    sampling = request.sampling
    if not request.is_ranked or sampling.logprobs is not None:
        return request
    return msgspec.structs.replace(request, sampling=msgspec.structs.replace(sampling, logprobs=0))
