"""Values that travel between dialects, service and engines. Imports nothing of dragoman.

bytes -> dialect.parse -> GenerationRequest -> service -> EngineRequest -> engine -> EngineOutput -> detokenizer ->
GenerationEvent -> encoder -> bytes. Values of every call or token are Structs: cheaper to make than dataclasses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, Protocol

import msgspec


class FinishReason(StrEnum):
    EOS = "eos"  # the end-of-sequence token was generated
    STOP_TOKEN = "stop_token"  # a token of `stop_token_ids` was generated
    STOP_STRING = "stop_string"  # the text contained one of the stop strings
    LENGTH = "length"  # `max_tokens` or the context length was reached
    REPETITION = "repetition"  # the content had begun to repeat itself, and the request asked for an end then
    ABORT = "abort"  # cancelled before it ended


LOWEST_LOGPROB = -9999.0  # represents minus infinity, which JSON lacks; vLLM's clients know the number
BLOCK_TOKENS = 32  # engines share whole blocks of prompts


@dataclass(frozen=True, slots=True)
class Limits:
    """Largest values of one call, and the smallest priority. The first six are the operator's."""

    max_best_of: int = 20  # bounds n, best_of and the beam width. 20: best_of_limit of OpenVINO Model Server
    max_logprobs: int = 20  # 20: vLLM's and LMI's max_logprobs, and the OpenAI reference's limit of top_logprobs
    max_stop_strings: int = 64
    max_prompts: int = 1024  # of a call
    max_prompt_tokens: int | None = None  # None = what fits
    min_priority: int = 0  # the smallest goes first: clients may only lower their own
    max_messages: int = 10_000  # of a conversation; also bounds the parts and the tool calls in all of them
    max_tools: int = 1024
    max_bad_words: int = 1024
    max_word_chars: int = 1000  # of one stop string or bad word
    max_token_ids: int = 300_000  # of one list, or of a logit_bias; vocabularies are smaller
    max_assistant_tokens: int = 32  # of one draft: each costs a row of logits of the vocabulary's size
    max_pattern_size: int = 1024  # of a text that repeats itself: each token is compared with as many before it
    max_text_chars: int = 4_000_000  # that are tokenised for one prompt


def id_outside(token_ids: Collection[int], vocab_size: int) -> int | None:
    extremes = (min(token_ids), max(token_ids)) if token_ids else ()
    return next((token_id for token_id in extremes if not 0 <= token_id < vocab_size), None)


# --- pictures ---------------------------------------------------------------------------------------------------------

Detail = Literal["auto", "low", "high"]
"""How closely a picture is looked at, where the model leaves a choice; OpenAI's word."""


class Picture(msgspec.Struct, frozen=True, weakref=True):
    """Three bytes (red, green, blue) per pixel, row by row. `digest`: a hash of size and pixels."""

    width: int
    height: int
    rgb: bytes
    digest: str


class PictureSpan(msgspec.Struct, frozen=True):
    picture: Picture
    begin: int
    length: int
    detail: Detail = "auto"


@dataclass(frozen=True, slots=True)
class PictureLayout:
    """`text` replaces the marker. `grid`: rows and columns of embeddings, for tokens with three positions."""

    text: str
    num_embeddings: int
    grid: tuple[int, int] = (0, 0)


# --- prompts ----------------------------------------------------------------------------------------------------------


class TextPrompt(msgspec.Struct, frozen=True):
    """With `suffix` the model fills in the middle. `before_ids`: tokens before a text without suffix."""

    text: str
    suffix: str | None = None
    add_special_tokens: bool = True
    before_ids: tuple[int, ...] = ()


class TokenPrompt(msgspec.Struct, frozen=True):
    token_ids: tuple[int, ...]


class ChatPrompt(msgspec.Struct, frozen=True):
    """A conversation for the model's chat template. `messages` as templates take them; `tools` are OpenAI-shaped.

    A part of type `image_url` holds `{"url": …, "detail": …}`; `pictures`: those of all such parts, in order.
    `before_ids`: tokens before a conversation without pictures.
    """

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    continue_final_message: bool = False
    template_kwargs: Mapping[str, Any] = msgspec.field(default_factory=dict)
    pictures: tuple[Picture, ...] = ()
    before_ids: tuple[int, ...] = ()


class MixedPrompt(msgspec.Struct, frozen=True):
    """Consecutive texts and token ids. A text in the first place gets the model's usual first tokens."""

    parts: tuple[str | int, ...]


class InfillPrompt(msgspec.Struct, frozen=True):
    """Code with a gap for the model to fill; `begun` is the gap's beginning. Only `begun` may have control tokens.

    `files`: names and texts of other code, the most important last. A prompt that leaves no room for
    `num_answer_tokens` loses the first files, then the outer ends of `before` and `behind`.
    """

    before: str
    behind: str
    begun: str = ""
    files: tuple[tuple[str, str], ...] = ()
    num_answer_tokens: int = 0


Prompt = TextPrompt | TokenPrompt | ChatPrompt | MixedPrompt | InfillPrompt


class TraceContext(msgspec.Struct, frozen=True):
    trace_id: str
    is_sampled: bool = False
    state: str = ""
    span_id: str = ""


# --- what a client asked ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Grammar:
    """A constraint on the output text. `source` is a JSON text for json_schema, a JSON array text for choice.

    `frame`: a Lark grammar for the surrounding text, which contains this one as `@output`. `needs_frame`: the output
    begins with other text. `covers_tool_calls`: every tool call follows the grammar. `passed_over`: unenforced parts of
    a schema, with reasons.
    """

    kind: Literal["json_schema", "json_object", "regex", "lark", "choice"]
    source: str = ""
    frame: str = ""
    covers_tool_calls: bool = False
    needs_frame: bool = False
    param: str = field(default="response_format", compare=False)
    passed_over: Mapping[str, str] = field(default_factory=dict, compare=False)


class RepetitionDetection(msgspec.Struct, frozen=True):
    """A text ends with the same tokens several times in a row; size 0 = off."""

    max_pattern_size: int = 0
    min_pattern_size: int = 1
    min_count: int = 2


class FurtherSampling(msgspec.Struct, frozen=True, kw_only=True):
    """Samplers with llama.cpp's defaults. Sources: text-generation-webui, pulls 5677 and 6335; arXiv:2411.07641."""

    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1  # searched tokens; -1 = all, 0 = none
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1


class SamplingParams(FurtherSampling, frozen=True):
    """Complete and legal rules for the next token: dialects validate. Neutral values switch a feature off.

    Log-probabilities are taken before temperature, penalties, bias and masks. Sources: top_p 1904.09751, typical_p
    2202.00666, diversity_penalty 1610.02424.
    """

    temperature: float = 1.0
    top_k: int = 0  # 0 = all tokens
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0  # over prompt and generated tokens
    presence_penalty: float = 0.0  # over generated tokens
    frequency_penalty: float = 0.0  # over generated tokens
    logit_bias: Mapping[int, float] = msgspec.field(default_factory=dict)
    bad_words: tuple[str, ...] = ()  # never generated, as token sequences, each also with a leading space
    allowed_token_ids: tuple[int, ...] | None = None
    min_tokens: int = 0  # end-of-sequence and stop tokens are banned until then
    ignore_eos: bool = False
    infill: bool = False  # for gaps in code: the answer ends instead of an unlikely token
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None  # None = the service draws one
    n: int = 1  # sequences returned
    best_of: int | None = None  # sequences drawn; None = n. The top n by cumulative log-probability are returned
    num_beams: int = 1  # > 1 = beam search of this width; n <= num_beams
    num_beam_groups: int = 1
    diversity_penalty: float = 0.0
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    logprobs: int | None = None  # None = none; 0 = the chosen token's; N = also the N most likely
    prompt_logprobs: int | None = None  # the same for the prompt's tokens
    post_sampling_probs: bool = False  # `logprobs` are of the final distribution, after penalties, bias and masks
    grammar: Grammar | None = None
    thinking_token_budget: int | None = None  # of reasoning, which then ends; -1 = no bound, None = the server's
    repetition_detection: RepetitionDetection | None = None  # in content, which then ends, and in reasoning
    num_assistant_tokens: int | None = None  # draft tokens per step, where a draft model guesses
    assistant_confidence_threshold: float | None = None
    max_ngram_size: int | None = None

    @property
    def is_greedy(self) -> bool:
        """True if sampling cannot change the outcome (beam search is neither greedy nor sampled)."""
        return self.temperature == 0.0 and self.num_beams == 1

    @property
    def num_sequences(self) -> int:
        return max(self.num_beams, self.best_of or 1, self.n)

    @property
    def has_dry(self) -> bool:
        return self.dry_multiplier > 0.0 and self.dry_penalty_last_n != 0


class LineLimits(msgspec.Struct, frozen=True):
    """An answer ends before a line with less indent, or at the first line end after `max_s`."""

    min_indent: int = 0
    max_s: float | None = None


ToolChoice = Literal["auto", "none", "required", "named"]


class GenerationRequest(msgspec.Struct, frozen=True):
    """One prompt with all its parameters. `max_tokens` None = up to the context length.

    `on_overflow`, if prompt + max_tokens exceed the context: `refuse` (OpenAI, OVMS, TGI) or `clip` (LMI, text service:
    generate what fits). With context shifts, `may_shift` replaces both: `n_keep` prompt tokens stay (-1 = all), besides
    begin-of-sequence, and `n_discard` of the others go (0 = half).
    """

    request_id: str
    prompt: Prompt
    sampling: SamplingParams = SamplingParams()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    include_stop_in_text: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None  # keep the last N prompt tokens
    on_overflow: Literal["refuse", "clip"] = "refuse"
    model: str | None = None  # None = the default model
    adapter: str | None = None  # None = the adapter that `model` names, if any; "" = none
    parse_tool_calls: bool = False  # split the text into content, reasoning and tool calls (chat with `tools`)
    parse_reasoning: bool = False
    tool_choice: ToolChoice | None = None  # None = no tools
    called_tool: str = ""  # with the choice `named`: the tool to call
    parallel_tool_calls: bool = True  # several calls at once are allowed
    priority: int = 0  # the highest waiting request goes first
    cache_salt: str = ""  # only requests with the same salt share cached prompts
    cache_keep_s: float | None = None  # see `EngineRequest`
    cache_key: str = ""  # requests with equal keys and beginnings go to the same of several replicas
    passed_over: Mapping[str, str] = msgspec.field(default_factory=dict)  # of the tools' schemas; see `Grammar`
    biased_texts: Mapping[str, float] = msgspec.field(default_factory=dict)  # a logit bias for each token of each text
    lines: LineLimits | None = None
    may_shift: bool = True
    n_keep: int = 0
    n_discard: int = 0
    include_end_in_text: bool = False  # the token that ends an answer has its text, unless it is skipped as special


# --- between service and engine ---------------------------------------------------------------------------------------


class StopCriterion(Protocol):
    """A test for stop strings over tokens, for engines that rank sequences without seeing text."""

    def __call__(self, token_ids: Sequence[int]) -> bool: ...


class Foreseen(NamedTuple):
    """Allowed tokens of a forced text; only the first `num_forced` are forced. `is_open`: the last may be longer."""

    token_ids: list[int]
    num_forced: int
    is_open: bool


NOTHING_FORESEEN = Foreseen([], 0, False)


SLOW_MASK_S = 0.004
"""Processor seconds from which on a token's mask is computed in turn with others, and nothing is guessed."""


class TokenMasker(Protocol):
    """A sequence's state in a compiled grammar, for one thread at a time. `last_s`, `total_s`: processor seconds."""

    last_s: float

    @property
    def total_s(self) -> float: ...

    def fork(self) -> TokenMasker: ...

    def fill_mask(self, bitmask_row: Any) -> None:
        """Write the allowed tokens into a row of 32-bit words (bit i of word w = token 32*w + i)."""
        ...

    def fill_masks(self, bitmask_rows: Any, token_ids: Sequence[int]) -> None:
        """Write the masks here and after each of these tokens, [1 + len(token_ids), words]; the state does not change.

        A token that is not allowed leaves the grammar where it is.
        """
        ...

    def foresee(self, limit: int) -> Foreseen:
        """At most `limit` tokens of the text forced from here; the state does not change."""
        ...

    def advance(self, token_id: int) -> bool: ...

    def validate(self, token_ids: Sequence[int]) -> int: ...

    @property
    def is_finished(self) -> bool: ...


class Unsearched(msgspec.Struct, frozen=True):
    """A part of the answer without stop strings, between marks. `inside`: the end mark of one in which it begins."""

    marks: tuple[tuple[str, str], ...]
    inside: str = ""


class AnswerWatch(Protocol):
    """A sequence's state for ending its reasoning, or repetitive content. Used by one thread at a time."""

    forced_ids: Sequence[int]
    is_over: bool

    def fork(self) -> AnswerWatch: ...

    def advance(self, token_id: int) -> None: ...

    def ends_with(self, token_id: int) -> bool: ...

    def num_possible(self, token_ids: Sequence[int]) -> int: ...


class StopStrings(msgspec.Struct, frozen=True):
    """Texts that end a sequence at the token that completes the first, not within the first `min_tokens` tokens."""

    strings: tuple[str, ...]
    skip_special_tokens: bool = True
    unsearched: Unsearched | None = None


class Standing(msgspec.Struct, frozen=True):
    """A caller's standing. `priority`: its highest, None = as each asks. `share` 3: three times as much as share 1."""

    priority: int | None = None
    share: int = 1
    is_background: bool = False

    def priority_of(self, wanted: int) -> int:
        if self.priority is None:
            return wanted
        return min(wanted, self.priority) if wanted else self.priority


USUAL_STANDING = Standing()
BACKGROUND_STANDING = Standing(is_background=True)


class SequenceBreaker(msgspec.Struct, frozen=True):
    """DRY sees no repetition across these tokens: one of `heads`, and then the tokens of `tail`."""

    heads: tuple[int, ...]
    tail: tuple[int, ...] = ()


class Thinking(msgspec.Struct, frozen=True):
    """An answer's reasoning and its bounds. To end it, an engine forces the closing tokens.

    `is_open`: the answer begins within it; else the mark comes first or, if it `recurs`, anywhere and repeatedly.
    `budget`: tokens in total; a character of several tokens is completed. `repetition`: a loop that also ends it.
    `reclosing_ids`: forced if it begins again after that.
    """

    begin: str
    ends: tuple[str, ...]
    closing_ids: tuple[int, ...]
    is_open: bool = False
    recurs: bool = False
    budget: int | None = None
    repetition: RepetitionDetection | None = None
    reclosing_ids: tuple[int, ...] = ()


class ContextShift(msgspec.Struct, frozen=True):
    """The cut of a sequence at `longest` tokens: the first `num_kept` stay, `num_dropped` go (0 = half the others)."""

    longest: int
    num_kept: int = 0
    num_dropped: int = 0

    def dropped(self) -> range:
        """The places of the dropped tokens; never the last token, which the model has not read yet.

        As in llama.cpp, at least three tokens before the last one are not kept, and at least one is dropped.
        """
        begin = min(self.num_kept, max(self.longest - 4, 0))
        num_others = self.longest - 1 - begin
        return range(begin, begin + min(self.num_dropped or max(num_others // 2, 1), max(num_others - 1, 1)))


class EngineRequest(msgspec.Struct, frozen=True):
    """A request for engines: token ids within the vocabulary, legal values, seed resolved. Pure data, for JSON too.

    `max_tokens` 0 = only the prompt's log-probabilities. `stop`: for engines that rank sequences before their text is
    seen. `cache_salt`, `cache_owner`: requests share cached prompts only with equal ones; the client cannot choose the
    owner. `cache_keep_s`: the least time to keep the prompt on disk, within the caller's share; 0 = in memory only,
    None = while there is room. `cache_key`: requests with equal keys and beginnings go to the same replica. `priority`:
    the highest is admitted first. `caller`, `share`: engines may share fairly among callers. `deadline_s`,
    `start_by_s`: when a request, or one that has not started, is given up, in seconds since the epoch, as other
    machines may run it. `pictures`: in the order of their places, without overlap. `thinking` None = no bounds; remote
    engines use `SamplingParams.thinking_token_budget`. `shift` None = prompt and answer fit.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    max_tokens: int
    seed: int
    eos_token_ids: frozenset[int] = frozenset()
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    stop: StopStrings | None = None
    adapter: str | None = None
    cache_salt: str = ""
    priority: int = 0
    deadline_s: float | None = None
    pictures: tuple[PictureSpan, ...] = ()
    trace: TraceContext | None = None
    caller: str = ""
    start_by_s: float | None = None
    cache_owner: str = ""
    cache_keep_s: float | None = None
    cache_key: str = ""
    share: int = 1
    is_background: bool = False
    dry_breakers: tuple[SequenceBreaker, ...] = ()
    thinking: Thinking | None = None
    shift: ContextShift | None = None

    @property
    def cache_partition(self) -> str:
        """The common key of requests that share cached prompts; no salt makes it another owner's."""
        if not self.cache_owner:
            return self.cache_salt
        return f"{blake2b(self.cache_owner.encode(), digest_size=16).hexdigest()}:{self.cache_salt}"

    @property
    def is_watched(self) -> bool:
        return self.thinking is not None or self.sampling.repetition_detection is not None

    @property
    def is_ranked(self) -> bool:
        """True if more sequences are drawn than returned: the best are returned whole, after all have ended."""
        return self.sampling.num_sequences > self.sampling.n

    def end_reasons(self) -> dict[int, FinishReason]:
        """The tokens that end a sequence, with the reason; one that is both counts as end-of-sequence."""
        reasons = dict.fromkeys(self.sampling.stop_token_ids, FinishReason.STOP_TOKEN)
        if not self.sampling.ignore_eos:
            reasons.update(dict.fromkeys(self.eos_token_ids, FinishReason.EOS))
        return reasons


class Logprob(msgspec.Struct, frozen=True):
    token_id: int
    logprob: float


class EngineOutput(msgspec.Struct):
    """The tokens that one step (for ranked sequences, the whole generation) added to one sequence.

    `token_ids` include end-of-sequence, and `logprobs` are aligned with them; `top_logprobs[i]`: the N most likely,
    best first. Set in the first output: `prompt_logprobs` (aligned with the prompt, first entry None),
    `num_stored_tokens` (read from disk), `queue_s`. `num_cached_tokens`: there, or at the end if known later. At the
    end: `cumulative_logprob`, `num_preemptions`.
    """

    request_id: str
    index: int
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    logprobs: list[float] | None = None
    top_logprobs: list[list[Logprob]] | None = None
    prompt_logprobs: list[PromptLogprob | None] | None = None
    num_cached_tokens: int = 0
    num_stored_tokens: int = 0
    cumulative_logprob: float | None = None
    num_draft_tokens: int = 0  # speculation: proposed in this step
    num_accepted_tokens: int = 0
    queue_s: float | None = None
    num_preemptions: int = 0


class PromptLogprob(msgspec.Struct, frozen=True):
    logprob: float
    top: tuple[Logprob, ...] = ()
    rank: int | None = None


# --- what dialects encode ---------------------------------------------------------------------------------------------


class TopToken(msgspec.Struct, frozen=True):
    """One of the N most likely tokens at a position. `text` decodes `bytes` alone (U+FFFD where it is not UTF-8)."""

    id: int
    text: str
    logprob: float
    bytes: bytes


class TokenOutput(msgspec.Struct, frozen=True):
    """One generated or prompt token. `token_text`: the token decoded alone. `rank`: 1 for the most likely.

    `text`: the token's addition to the text; "" within a character (its last token has it whole), within a stop string,
    and for hidden special tokens.
    """

    id: int
    text: str
    token_text: str = ""
    bytes: bytes = b""
    logprob: float | None = None
    top: tuple[TopToken, ...] = ()
    special: bool = False
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a tool call: the first piece of call `index` has `id` and `name`, later ones only `arguments`."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class PromptInfo(msgspec.Struct, frozen=True):
    text: str
    token_ids: tuple[int, ...]
    tokens: tuple[TokenOutput, ...] = ()
    num_cached_tokens: int = 0
    seed: int = 0
    num_kept_tokens: int = 0


class GenerationEvent(msgspec.Struct, frozen=True):
    """The text that one step added to one sequence. `text` == "".join(token.text for token in tokens).

    `prompt`: only in the request's first event. `content`: `text` without reasoning and tool calls, if they are split
    off. It ends before a stop string; if anything is split off, `text` is the model's whole output.
    """

    index: int
    text: str
    tokens: tuple[TokenOutput, ...] = ()
    finish_reason: FinishReason | None = None
    stop_match: str | int | None = None  # the stop string or stop token id that ended the sequence
    prompt: PromptInfo | None = None
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    cumulative_logprob: float | None = None
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str


def joined_calls(deltas: Iterable[ToolCallDelta]) -> tuple[ToolCall, ...]:
    """The calls of which these are the pieces."""
    pieces: dict[int, list[ToolCallDelta]] = {}
    for delta in deltas:
        pieces.setdefault(delta.index, []).append(delta)
    calls: list[ToolCall] = []
    for _, found in sorted(pieces.items()):
        arguments = "".join([piece.arguments for piece in found])
        calls.append(ToolCall(found[0].id or "", found[0].name or "", arguments))  # only the first piece has these
    return tuple(calls)


@dataclass(frozen=True, slots=True)
class SequenceResult:
    index: int
    text: str
    tokens: tuple[TokenOutput, ...]
    finish_reason: FinishReason
    stop_match: str | int | None = None
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    cumulative_logprob: float | None = None


@dataclass(frozen=True, slots=True)
class GenerationResult:
    request: GenerationRequest
    prompt: PromptInfo
    sequences: tuple[SequenceResult, ...]

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt.token_ids)

    @property
    def num_completion_tokens(self) -> int:
        return sum(len(sequence.tokens) for sequence in self.sequences)


@dataclass(frozen=True, slots=True)
class PooledText:
    """A text, or pair of texts, for one vector or score. `second_from`: the beginning of a pair's second text.

    `num_prompt_tokens`: of the prompt before the text. `num_seen`: the first tokens that all tokens attend to; later
    ones are not attended to; 0 = all. `wants_tokens`: a vector per token. `task`: number of the model's adapter; -1 =
    none.
    """

    token_ids: Sequence[int]
    second_from: int = 0
    num_prompt_tokens: int = 0
    num_seen: int = 0
    wants_tokens: bool = False
    task: int = -1
