"""The mutable progress of a request: its sequence group and the sequences in it.

Does: hold token ids, how many of them are computed, sampler state, log-probabilities and finish reasons. Does not:
schedule, own blocks, or sample. Changed by the scheduler and by `update` only, on the engine thread.

A request is one sequence group. Its first sequence computes the prompt; when that is done, the others fork from it and
are from then on scheduled, preempted and finished one by one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from enum import Enum, auto

import msgspec

from dragoman.engine.rolling.adapters.use import AdapterUse
from dragoman.engine.rolling.beams.beam_group import BeamGroup
from dragoman.engine.rolling.blocks.block_manager import extend_digests, root_digest
from dragoman.engine.rolling.pictures.prompt_pictures import PromptPictures
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
    """The status of a sequence. Only a running sequence holds blocks."""

    UNFORKED = auto()  # waits for its group's prompt to be computed by the first sequence
    WAITING = auto()  # new, or preempted
    RUNNING = auto()
    FINISHED = auto()


class Sequence:
    """One growing list of tokens.

    `token_ids` = prompt + generated + draft tokens; the last `num_draft_tokens` of them are proposals that no verification
    has accepted yet. The cache holds the first `num_computed_tokens`; the next step computes some that follow.
    """

    __slots__ = (
        "cumulative_logprob",
        "digests",
        "finish_reason",
        "group",
        "has_joined",
        "has_loaded",
        "index",
        "is_held",
        "is_long",
        "logprobs",
        "num_accepted_drafts",
        "num_computed_tokens",
        "num_draft_tokens",
        "num_in_memory",
        "num_preemptions",
        "num_prompt_tokens",
        "num_verified_drafts",
        "rank",
        "sampler_state",
        "sequence_id",
        "status",
        "token_ids",
        "top_logprobs",
    )

    def __init__(self, group: SequenceGroup, index: int, sequence_id: int, sampler_state: SamplerState) -> None:
        self.group = group
        self.index = index
        self.sequence_id = sequence_id
        self.rank = (-group.priority, _NOT_BEGUN, index)  # the smallest goes first
        self.sampler_state = sampler_state
        self.token_ids = array("q", group.request.prompt_ids)
        self.num_prompt_tokens = len(group.request.prompt_ids)
        self.num_computed_tokens = 0
        self.num_draft_tokens = 0
        self.num_verified_drafts = 0  # these two since the request came
        self.num_accepted_drafts = 0
        self.num_preemptions = 0
        self.is_held = False  # a beam whose next tokens wait for its siblings
        self._forget_loads()
        self.is_long = False  # its tokens are computed in the long regime
        self.status = SequenceStatus.UNFORKED if index else SequenceStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.cumulative_logprob = 0.0
        self.logprobs: list[float] = []  # these two only in groups that are ranked at the end
        self.top_logprobs: list[list[Logprob]] = []
        self.digests: list[bytes] = []  # of the full blocks at the front, as far as they were asked for

    @property
    def is_decoding(self) -> bool:
        """True if all its tokens are computed but the last one and the drafts; a held beam has none to compute."""
        return self.num_computed_tokens + self.num_draft_tokens == len(self.token_ids) - 1

    @property
    def num_tokens(self) -> int:
        """Prompt, generated and draft tokens."""
        return len(self.token_ids)

    @property
    def num_generated_tokens(self) -> int:
        """Tokens that were sampled and accepted."""
        return len(self.token_ids) - self.num_draft_tokens - self.num_prompt_tokens

    @property
    def generated_ids(self) -> array[int]:
        """A copy of the generated tokens, drafts excluded."""
        return self.token_ids[self.num_prompt_tokens : len(self.token_ids) - self.num_draft_tokens]

    def set_drafts(self, draft_ids: array[int]) -> None:
        """Append proposals to be verified in the next step, replacing any that are there."""
        self.drop_drafts()
        self.token_ids.extend(draft_ids)
        self.num_draft_tokens = len(draft_ids)

    def drop_drafts(self) -> None:
        """Forget all proposals; what was computed for them counts as not computed (its slots are rewritten)."""
        if self.num_draft_tokens:
            del self.token_ids[-self.num_draft_tokens :]
            self.num_draft_tokens = 0
            self.num_computed_tokens = min(self.num_computed_tokens, len(self.token_ids))

    @property
    def draft_ids(self) -> list[int]:
        """The proposals that wait to be verified."""
        return self.token_ids[-self.num_draft_tokens :].tolist() if self.num_draft_tokens else []

    def take_drafts(self) -> list[int]:
        """Drop all proposals as `drop_drafts` does; returns them."""
        draft_ids = self.draft_ids
        self.drop_drafts()
        return draft_ids

    def end_reason(self, token_id: int) -> FinishReason | None:
        """Why the sequence would end with `token_id` as its next token, None if it goes on; limits of length aside."""
        group = self.group
        reason = group.end_reasons.get(token_id)
        # The sampler bans end tokens before `min_tokens`; one that still comes was all that a grammar left.
        if reason is not None:
            num_generated = self.num_generated_tokens + 1
            if num_generated >= group.request.sampling.min_tokens or self.sampler_state.masker is not None:
                return reason
        watch = self.sampler_state.watch
        if watch is not None and watch.ends_with(token_id):
            return FinishReason.REPETITION
        criterion = group.stop_criterion
        if criterion is None:
            return None
        generated_ids = self.generated_ids
        generated_ids.append(token_id)
        return FinishReason.STOP_STRING if criterion(generated_ids) else None

    def extend_digests(self, block_size: int, num_blocks: int) -> None:
        """Let `digests` name at least the first `num_blocks` full blocks."""
        group = self.group
        root = group.root_digest_of(is_long=True) if self.is_long else group.root_digest
        keys = None if group.pictures is None else group.picture_keys(block_size)
        extend_digests(self.digests, self.token_ids, block_size, num_blocks, root, keys)

    def copy_progress(self, other: Sequence) -> None:
        """Take over a sibling's tokens and all that was derived from them; status and blocks stay."""
        self.token_ids = array("q", other.token_ids)
        self.num_computed_tokens = other.num_computed_tokens
        self.is_long = other.is_long
        self.sampler_state = other.sampler_state.fork(self.index)
        self.cumulative_logprob = other.cumulative_logprob
        self.logprobs = other.logprobs.copy()
        self.top_logprobs = other.top_logprobs.copy()
        self.digests = other.digests.copy()

    def become_long(self) -> None:
        """From now on its tokens are computed in the long regime, all of them again."""
        self.is_long = True
        self.num_computed_tokens = 0
        self.digests = []
        self._forget_loads()

    def reset(self) -> None:
        """Back to waiting with nothing computed; the generated tokens stay."""
        self.drop_drafts()
        self.num_computed_tokens = 0
        self.status = SequenceStatus.WAITING
        self._forget_loads()

    def _forget_loads(self) -> None:
        """Blocks of it may be loaded from disk: by a load of its own, and before that by one that it finds on its way."""
        self.has_loaded = self.has_joined = False
        self.num_in_memory: int | None = None  # its tokens that were cached when it began to wait for a load


Due = tuple[float | None, float | None]
"""A request's deadline, and when it must have begun, in seconds; None = no such time."""


class AddRequest(msgspec.Struct, frozen=True):
    """The command to run `request`, with what is made before the engine thread gets it, as it takes long or needs others.

    `key`: marks the request's outputs, and identifies it inside the engine, whatever its request id. `masker`: the start
    state of its grammar. `stop_criterion`: watches for its stop strings; None = its reader does. `pictures`: its pictures,
    embedded. `adapter`: the one it asked for, which is kept for it. `watch`: of its reasoning, and of content that may not
    repeat itself. `due`: its times by the engine's clock, None = they were not looked up.
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
    """The sequences of one request, and what they share. `key`: see `AddRequest`.

    `is_ranked`: more sequences are drawn than returned; the best are delivered when all have finished. `beams`: the state
    of its beam search, if it does one. `root_digest`: what the digests of its blocks begin with, unless they are in the long
    regime. `pictures`: those of the prompt, None = there are none. `adapter`: None = the model as it is. `priority`: the
    request's, behind all others if it is in the background.
    """

    __slots__ = (
        "_picture_keys",
        "adapter",
        "arrival",
        "arrival_s",
        "beams",
        "end_reasons",
        "has_begun",
        "has_reported_prompt",
        "is_background",
        "is_charged",
        "is_forked",
        "is_ranked",
        "key",
        "num_cached_tokens",
        "num_stored_tokens",
        "pictures",
        "priority",
        "prompt_logprobs",
        "queue_s",
        "request",
        "root_digest",
        "sequences",
        "stop_criterion",
    )

    def __init__(self, command: AddRequest, arrival: int, sampler: Sampler, beams: BeamGroup | None = None) -> None:
        """`beams` is given if, and only if, the request searches."""
        request, sampling = command.request, command.request.sampling
        assert (beams is None) == (sampling.num_beams == 1)
        self.key = command.key
        self.arrival = arrival
        self.request = request
        self.is_background = request.is_background
        self.priority = request.priority - (_BACKGROUND if request.is_background else 0)
        self.is_ranked = request.is_ranked
        self.is_forked = sampling.num_sequences == 1
        self.end_reasons = end_reasons(request)
        self.beams = beams
        self.stop_criterion = command.stop_criterion
        self.adapter = command.adapter
        self.root_digest = self.root_digest_of(is_long=False)
        self.num_cached_tokens = 0
        self.num_stored_tokens = 0  # of these, those that were loaded for it
        self.is_charged = False  # its caller, for the prompt
        self.arrival_s = 0.0
        self.queue_s: float | None = None  # from then to its first step
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
        """First admission: queue it behind every request of equal priority already admitted."""
        self.has_begun = True
        for sequence in self.sequences:
            sequence.rank = (-self.priority, order, sequence.index)

    def root_digest_of(self, *, is_long: bool) -> bytes:
        """The start of the digests of blocks in a regime."""
        adapter = "" if self.adapter is None else self.adapter.key
        return root_digest(self.request.cache_partition, adapter, is_long=is_long)

    def picture_keys(self, block_size: int) -> dict[int, bytes]:
        """See `PromptPictures.block_keys`; made once."""
        if self._picture_keys is None:
            self._picture_keys = {} if self.pictures is None else self.pictures.block_keys(block_size)
        return self._picture_keys

    @property
    def needs_prompt_logprobs(self) -> bool:
        """True while prompt log-probabilities were asked for and are not complete."""
        return self.prompt_logprobs is not None and len(self.prompt_logprobs) < len(self.request.prompt_ids)

    @property
    def num_prompt_end_rows(self) -> int:
        """Rows of logits needed at the prompt's end: all beams start from one, sampled sequences draw from one each."""
        return 1 if self.beams is not None else len(self.sequences)

    @property
    def num_unforked(self) -> int:
        """Sequences that will start to run when the prompt has been computed."""
        return 0 if self.is_forked else len(self.sequences) - 1

    @property
    def is_finished(self) -> bool:
        """True when every sequence has finished."""
        return all(sequence.finish_reason is not None for sequence in self.sequences)

    def live_sequences(self) -> Iterator[Sequence]:
        """The sequences that have not finished."""
        return (sequence for sequence in self.sequences if sequence.finish_reason is None)


_BACKGROUND = 1 << 48  # more than clients can ask for
_MAX_SEQUENCES = 1 << 16  # of one group; keeps sequence ids unique
_NOT_BEGUN = 1 << 62  # in the place of the order of those that have


def end_reasons(request: EngineRequest) -> dict[int, FinishReason]:
    """The tokens that end a sequence; a token that is both an end and a stop token counts as end-of-sequence."""
    reasons = dict.fromkeys(request.sampling.stop_token_ids, FinishReason.STOP_TOKEN)
    if not request.sampling.ignore_eos:
        reasons.update(dict.fromkeys(request.eos_token_ids, FinishReason.EOS))
    return reasons


def _with_ranking(request: EngineRequest) -> EngineRequest:
    """The request as the sampler gets it: ranking sums log-probabilities, so they are needed even if nobody sees them."""
    sampling = request.sampling
    if not request.is_ranked or sampling.logprobs is not None:
        return request
    return msgspec.structs.replace(request, sampling=msgspec.structs.replace(sampling, logprobs=0))
