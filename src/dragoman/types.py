"""The values that travel between client dialects, the service and the engines.

Does: define one typed value per hop of the data path, in the field's neutral words.
Does not: validate, tokenise, or know any wire format. Imported by everyone; imports nothing of dragoman.

    bytes -> dialect.parse -> GenerationRequest -> service -> EngineRequest -> engine -> EngineOutput
          -> detokenizer -> GenerationEvent -> dialect encoder -> bytes

What is made for every call or token is a Struct: as a frozen dataclass it would cost up to ten times as much to make.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, Protocol

import msgspec


class FinishReason(StrEnum):
    """Why a sequence ended. Dialects rename these, they never invent others."""

    EOS = "eos"  # the end-of-sequence token was generated
    STOP_TOKEN = "stop_token"  # a token of `stop_token_ids` was generated
    STOP_STRING = "stop_string"  # the text contained one of the stop strings
    LENGTH = "length"  # `max_tokens` or the context length was reached
    REPETITION = "repetition"  # the content had begun to repeat itself, and the request asked for an end then
    ABORT = "abort"  # cancelled before it ended


LOWEST_LOGPROB = -9999.0  # stands for minus infinity, which JSON cannot say; vLLM's clients know the number
BLOCK_TOKENS = 32  # engines share whole blocks of prompts


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds on what one call may ask, in every dialect; each is the largest value allowed, but for the priority.

    The first six are the operator's. The others are far beyond use, and keep a body from becoming minutes of work.
    """

    max_best_of: int = 20  # bounds n, best_of and the beam width. 20: best_of_limit of OpenVINO Model Server
    max_logprobs: int = 20  # 20: vLLM's and LMI's max_logprobs, and the OpenAI reference's limit of top_logprobs
    max_stop_strings: int = 64
    max_prompts: int = 1024  # of a call
    max_prompt_tokens: int | None = None  # None = what fits
    min_priority: int = 0  # the smallest goes first, so that clients may only let others go before
    max_messages: int = 10_000  # of a conversation; also bounds the parts and the tool calls in all of them
    max_tools: int = 1024
    max_bad_words: int = 1024
    max_word_chars: int = 1000  # of one stop string or bad word
    max_token_ids: int = 300_000  # of one list, or of a logit_bias; vocabularies are smaller
    max_assistant_tokens: int = 32  # of one draft: each costs a row of logits of the vocabulary's size
    max_pattern_size: int = 1024  # of a text that repeats itself: each token is compared with as many before it
    max_text_chars: int = 4_000_000  # that are tokenised for one prompt


def id_outside(token_ids: Collection[int], vocab_size: int) -> int | None:
    """An id among these that a vocabulary of this size does not have, None if it has all; quick, as there may be many."""
    extremes = (min(token_ids), max(token_ids)) if token_ids else ()
    return next((one for one in extremes if not 0 <= one < vocab_size), None)


# --- pictures ---------------------------------------------------------------------------------------------------------

Detail = Literal["auto", "low", "high"]
"""How closely a picture is looked at, where the model leaves a choice; OpenAI's word."""


class Picture(msgspec.Struct, frozen=True, weakref=True):
    """A decoded picture: three bytes (red, green, blue) for each pixel, row by row from the top left.

    `digest`: a hash of size and pixels; two pictures with the same one are the same picture.
    """

    width: int
    height: int
    rgb: bytes
    digest: str


class PictureSpan(msgspec.Struct, frozen=True):
    """The place of a picture in a prompt: `length` tokens from `begin` on.

    Among them is the model's placeholder, as often as the picture has embeddings.
    """

    picture: Picture
    begin: int
    length: int
    detail: Detail = "auto"


@dataclass(frozen=True, slots=True)
class PictureLayout:
    """The shape of a picture of some size in a prompt. `text`: what replaces the marker in a prompt, placeholders included.

    `num_embeddings`: placeholders in `text`. `grid`: rows and columns of embeddings, for decoders whose tokens have three
    positions; (0, 0) where they have one.
    """

    text: str
    num_embeddings: int
    grid: tuple[int, int] = (0, 0)


# --- prompts ----------------------------------------------------------------------------------------------------------


class TextPrompt(msgspec.Struct, frozen=True):
    """A prompt as text; with `suffix` the model fills in the middle between `text` and `suffix`.

    `before_ids`: tokens that come before the text, where there is no suffix.
    """

    text: str
    suffix: str | None = None
    add_special_tokens: bool = True
    before_ids: tuple[int, ...] = ()


class TokenPrompt(msgspec.Struct, frozen=True):
    """A prompt as token ids; ids outside the vocabulary are refused by the service."""

    token_ids: tuple[int, ...]


class ChatPrompt(msgspec.Struct, frozen=True):
    """A conversation; the service renders it with the model's chat template.

    `messages` are as the template sees them: `role`, `content` (string, or list of parts), and optionally `name`,
    `tool_calls`, `tool_call_id`. `tools` are OpenAI-shaped tool objects. `template_kwargs` reach the template as is.
    A part of type `image_url` holds `{"url": …, "detail": …}`; `pictures` are those of all such parts, in their order, once
    they are fetched. `before_ids`: tokens that come before the conversation, where it has no pictures.
    """

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    continue_final_message: bool = False
    template_kwargs: Mapping[str, Any] = msgspec.field(default_factory=dict)
    pictures: tuple[Picture, ...] = ()
    before_ids: tuple[int, ...] = ()


class MixedPrompt(msgspec.Struct, frozen=True):
    """A prompt of texts and token ids, one after the other. Before a text in the first place come the tokens that the model
    expects there; later texts go on from what is before them.
    """

    parts: tuple[str | int, ...]


class InfillPrompt(msgspec.Struct, frozen=True):
    """Code with a gap, which the model fills: what stands before and behind it, and how the gap begins.

    None of their texts becomes a control token, but those of `begun`. `files`: names and texts of other code of interest,
    the most important last. What does not fit beside `num_answer_tokens` loses files first, the first ones before others,
    then the beginning of `before` and the end of `behind`.
    """

    before: str
    behind: str
    begun: str = ""
    files: tuple[tuple[str, str], ...] = ()
    num_answer_tokens: int = 0


Prompt = TextPrompt | TokenPrompt | ChatPrompt | MixedPrompt | InfillPrompt


class TraceContext(msgspec.Struct, frozen=True):
    """The trace that a client's call belongs to, as its header fields tell it. Source: W3C Trace Context.

    `trace_id`: 32 hexadecimal digits. `state`: its `tracestate`, "" if there is none. `span_id`: 16 hexadecimal digits, the
    span that is recorded for the call; "" = none is.
    """

    trace_id: str
    is_sampled: bool = False
    state: str = ""
    span_id: str = ""


# --- what a client asked ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Grammar:
    """A constraint on the output text. `source` is a JSON text for json_schema, a JSON array text for choice.

    `frame`: a Lark grammar in which this one stands as `@output`, for text around it; "" = there is none.
    `covers_tool_calls`: every tool call in the output follows the grammar, so that none can turn out to be malformed.
    `needs_frame`: the output begins with other text, which the grammar alone would have to be. `param`: the parameter that
    it came in. `passed_over`: the parts of a schema that it does not hold the output to, and why.
    """

    kind: Literal["json_schema", "json_object", "regex", "lark", "choice"]
    source: str = ""
    frame: str = ""
    covers_tool_calls: bool = False
    needs_frame: bool = False
    param: str = field(default="response_format", compare=False)
    passed_over: Mapping[str, str] = field(default_factory=dict, compare=False)


class RepetitionDetection(msgspec.Struct, frozen=True):
    """The rule for a text that repeats itself: it ends with the same `period` tokens, several times in a row.

    `max_pattern_size` 0 = that is not looked for. Names: vLLM's sampling parameters.
    """

    max_pattern_size: int = 0
    min_pattern_size: int = 1
    min_count: int = 2


class FurtherSampling(msgspec.Struct, frozen=True, kw_only=True):
    """Samplers that no API's document has and most servers of local models do: DRY, top-n sigma and XTC.

    Values are llama.cpp's defaults. DRY is on with a multiplier, XTC with a probability, top-n sigma above 0.
    Sources: DRY and XTC, pull requests 5677 and 6335 of text-generation-webui; top-n sigma, arXiv:2411.07641.
    """

    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1  # tokens that are searched; -1 = all, 0 = none
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1


class SamplingParams(FurtherSampling, frozen=True):
    """The rules for choosing the next token, complete and legal: dialects validate and fill in their own defaults.

    Neutral values switch a feature off. `temperature` 0 is greedy. Log-probabilities are raw: taken before temperature,
    penalties, bias and masks. Sources: top_p 1904.09751, typical_p 2202.00666, diversity_penalty 1610.02424.
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
    infill: bool = False  # for gaps in code: tokens that are hardly likely are not drawn, the answer ends instead
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
    post_sampling_probs: bool = False  # `logprobs` of what the token was drawn from, after all that shapes that
    grammar: Grammar | None = None
    thinking_token_budget: int | None = None  # of reasoning, which is ended then; -1 = no bound, None = the server's
    repetition_detection: RepetitionDetection | None = None  # of the content, which ends then; also of the reasoning
    num_assistant_tokens: int | None = None  # draft tokens per step, where a draft model guesses
    assistant_confidence_threshold: float | None = None
    max_ngram_size: int | None = None

    @property
    def is_greedy(self) -> bool:
        """True if sampling cannot change the outcome (beam search is neither greedy nor sampled)."""
        return self.temperature == 0.0 and self.num_beams == 1

    @property
    def num_sequences(self) -> int:
        """Sequences the engine runs for one request."""
        return max(self.num_beams, self.best_of or 1, self.n)

    @property
    def has_dry(self) -> bool:
        """True if repeated sequences are penalised."""
        return self.dry_multiplier > 0.0 and self.dry_penalty_last_n != 0


class LineLimits(msgspec.Struct, frozen=True):
    """Bounds on an answer's lines: at one of them it ends as if it had reached its length.

    `min_indent`: before the text of a line that has fewer blanks and tabs in front. `max_s`: at the first end of a line
    that comes more seconds than that after the first token, None = no bound.
    """

    min_indent: int = 0
    max_s: float | None = None


ToolChoice = Literal["auto", "none", "required", "named"]
"""Whether tools are called: as the model likes, not at all, at least one, or the one that is named."""


class GenerationRequest(msgspec.Struct, frozen=True):
    """One prompt and everything the client asked about it, in neutral words. Made by `dialect.parse`.

    `max_tokens` None = up to the context length. `on_overflow`: what to do when prompt + max_tokens exceed the context:
    `refuse` (OpenAI, OVMS, TGI) or `clip` (LMI, text service: generate what fits, finish with length). Where the server
    shifts contexts, neither is done if `may_shift`: `n_keep` tokens of the prompt stay then (-1 = all), besides its
    begin-of-sequence token, and `n_discard` of the others go (0 = half).
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
    adapter: str | None = None  # None = the one that `model` names, if it is one's name; "" = none
    parse_tool_calls: bool = False  # split the text into content, reasoning and tool calls (chat with `tools`)
    parse_reasoning: bool = False
    tool_choice: ToolChoice | None = None  # None = no tools
    called_tool: str = ""  # with the choice `named`, the one tool to call
    parallel_tool_calls: bool = True  # more than one tool may be called at a time
    priority: int = 0  # of requests that wait, those with the highest go first
    cache_salt: str = ""  # cached prompts are shared with requests of the same salt only
    cache_keep_s: float | None = None  # as `EngineRequest` has it
    cache_key: str = ""  # requests with equal keys and beginnings go to the same of several replicas
    passed_over: Mapping[str, str] = msgspec.field(default_factory=dict)  # of the tools' schemas, as of a grammar's
    biased_texts: Mapping[str, float] = msgspec.field(default_factory=dict)  # a logit bias for each token of each text
    lines: LineLimits | None = None
    may_shift: bool = True
    n_keep: int = 0
    n_discard: int = 0


# --- between service and engine ---------------------------------------------------------------------------------------


class StopCriterion(Protocol):
    """A text-level stop test in token terms, so that engines that rank sequences can end them without text."""

    def __call__(self, token_ids: Sequence[int]) -> bool: ...


class Foreseen(NamedTuple):
    """Tokens of a text that a grammar forces, in the spelling that the tokenizer gives it; all are allowed.

    The first `num_forced` are the only ones allowed in their places. `is_open`: what may follow could also be spelled with
    a longer token in the place of the last one.
    """

    token_ids: list[int]
    num_forced: int
    is_open: bool


NOTHING_FORESEEN = Foreseen([], 0, False)


SLOW_MASK_S = 0.004
"""Processor seconds from which on a token's mask is slow: it is computed in turn with others, and nothing is guessed."""


class TokenMasker(Protocol):
    """Per-sequence state of a compiled grammar: tells which tokens may come next. Used by one thread at a time.

    `last_s`: processor seconds that its last token has taken; `total_s`: that all of the request's have.
    """

    last_s: float

    @property
    def total_s(self) -> float: ...

    def fork(self) -> TokenMasker:
        """An independent copy of the state, for a forked sequence."""
        ...

    def fill_mask(self, bitmask_row: Any) -> None:
        """Write the allowed tokens into a row of 32-bit words (bit i of word w = token 32*w + i)."""
        ...

    def fill_masks(self, bitmask_rows: Any, token_ids: Sequence[int]) -> None:
        """The masks here and after the first, the second, … of these tokens; the state does not change.

        A token that is not allowed leaves the grammar where it is. Shapes: [1 + len(token_ids), words], see `fill_mask`.
        """
        ...

    def foresee(self, limit: int) -> Foreseen:
        """At most `limit` tokens of the text that is forced from here, none if several may follow; no change of state."""
        ...

    def advance(self, token_id: int) -> bool:
        """Consume a chosen token; False if the grammar does not allow it. Raises: ServerError if it cannot be followed."""
        ...

    def validate(self, token_ids: Sequence[int]) -> int:
        """The number of these draft tokens, from the front, that the grammar allows; the state does not change."""
        ...

    @property
    def is_finished(self) -> bool:
        """True if nothing more may follow (only end-of-sequence)."""
        ...


class Unsearched(msgspec.Struct, frozen=True):
    """A part of the answer where stop strings do not count: from one mark to the other, or to the end where that is "".

    `inside`: the mark that ends such a part in which the answer begins, "" = it begins in none.
    """

    marks: tuple[tuple[str, str], ...]
    inside: str = ""


class AnswerWatch(Protocol):
    """Per-sequence state of what ends its reasoning, or its content where that repeats itself. Used by one thread at a time.

    `forced_ids`: the tokens that have to come next, () = any may. `is_over`: nothing is left to watch for.
    """

    forced_ids: Sequence[int]
    is_over: bool

    def fork(self) -> AnswerWatch:
        """An independent copy of the state, for a forked sequence."""
        ...

    def advance(self, token_id: int) -> None:
        """Take in a token that was chosen."""
        ...

    def ends_with(self, token_id: int) -> bool:
        """True if this as the next token makes the content a loop; the state does not change."""
        ...

    def num_possible(self, token_ids: Sequence[int]) -> int:
        """The number of these draft tokens, from the front, that may come; the state does not change."""
        ...


class StopStrings(msgspec.Struct, frozen=True):
    """Texts that end a sequence: at the token that completes the first, which is still part of it.

    Matches within the first `SamplingParams.min_tokens` tokens do not count. `skip_special_tokens`: their text is unseen.
    """

    strings: tuple[str, ...]
    skip_special_tokens: bool = True
    unsearched: Unsearched | None = None


class Standing(msgspec.Struct, frozen=True):
    """The standing of a caller among others. `priority`: the highest of its requests; None = what each asks for.

    `share`: while requests wait, a caller of share 3 is given three times as much as one of share 1.
    `is_background`: they are work that can wait.
    """

    priority: int | None = None
    share: int = 1
    is_background: bool = False

    def priority_of(self, asked: int) -> int:
        """The priority of a request that asks for one, 0 if it asks for none; the highest goes first."""
        if self.priority is None:
            return asked
        return min(asked, self.priority) if asked else self.priority


USUAL_STANDING = Standing()
BACKGROUND_STANDING = Standing(is_background=True)


class SequenceBreaker(msgspec.Struct, frozen=True):
    """Tokens across which DRY sees no repetition: one of `heads`, and then the tokens of `tail`."""

    heads: tuple[int, ...]
    tail: tuple[int, ...] = ()


class Thinking(msgspec.Struct, frozen=True):
    """The place of an answer's reasoning, and when an engine ends it: it then takes the closing tokens for the next ones.

    `begin`, `ends`: the marks before and after it, as text. `is_open`: the answer begins within it; else it may begin with
    the mark, or, if it `recurs`, have it anywhere and again. `budget`: tokens of all of it, None = no bound; a character of
    several tokens is completed. `repetition`: what counts as a loop, which ends it, too. `reclosing_ids`: follow where it
    begins once more after that.
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
    """The cut of a sequence that reaches `longest` tokens and goes on: the model then reads fewer of them.

    It reads the first `num_kept`, and those after the next `num_dropped`; 0 = half of the others.
    """

    longest: int
    num_kept: int = 0
    num_dropped: int = 0

    def dropped(self) -> range:
        """The places of the tokens that are left out. The last token, which the model has not read yet, always stays.

        As llama.cpp has it: at least three tokens before the last one are not kept, and at least one is left out.
        """
        begin = min(self.num_kept, max(self.longest - 4, 0))
        num_others = self.longest - 1 - begin
        return range(begin, begin + min(self.num_dropped or max(num_others // 2, 1), max(num_others - 1, 1)))


class EngineRequest(msgspec.Struct, frozen=True):
    """A request as engines take it: token ids, complete, legal, seed resolved. Pure data: it survives JSON and msgpack.

    Legal: every value is within the range that its type allows, and every token id within the vocabulary. Whether this
    engine can run it, the engine decides (`engine.base`). `max_tokens` >= 0 (0 = only the prompt's log-probabilities).
    `stop`: an engine must watch for them where it ranks sequences, because nobody sees their text before; elsewhere it may.
    None where an answer is taken apart and only the service can tell its content, in which alone they count.
    `adapter`: one of the engine's, None = the model as it is. `cache_salt`: requests share cached prompts only with those of
    the same salt and owner; `cache_owner`: no client chooses it, "" = all are one. `cache_keep_s`: how long at least the
    prompt is kept where a later start of the engine finds it, within the caller's share of that place; 0 = in memory only,
    None = as long as there is room. `cache_key`: requests with equal keys and beginnings go to the same of several
    replicas. `priority`: of the requests that wait, those with the highest are admitted first. `caller`: who asks; engines
    that can share what they have fairly among callers, in proportion to `share`. `is_background`: work that can wait, for
    which others lose hardly any time. `deadline_s`: when the engine gives the request up, in seconds since the epoch, as
    it may have been made on another machine; `start_by_s`: when it gives it up unless its first step has begun; None =
    never.
    `dry_breakers`: of the texts in `dry_sequence_breakers`, where DRY is on.
    `pictures`: in the order of their places in the prompt, which do not overlap. `trace`: the client's, which servers that
    an engine asks are to continue; None = it has named none. `thinking`: None = no reasoning is ended; engines elsewhere go
    by `SamplingParams.thinking_token_budget` instead. `shift`: None = prompt and answer fit into the context together.
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
        """The key that requests with shared cached prompts have in common; no choice of a salt makes it another owner's."""
        if not self.cache_owner:
            return self.cache_salt
        return f"{blake2b(self.cache_owner.encode(), digest_size=16).hexdigest()}:{self.cache_salt}"

    @property
    def is_watched(self) -> bool:
        """True if something besides its tokens' number may end its reasoning, or its answer for repeating itself."""
        return self.thinking is not None or self.sampling.repetition_detection is not None

    @property
    def is_ranked(self) -> bool:
        """True if more sequences are drawn than returned: the best come out whole, when all have ended."""
        return self.sampling.num_sequences > self.sampling.n


class Logprob(msgspec.Struct, frozen=True):
    """One candidate token and its raw log-probability."""

    token_id: int
    logprob: float


class EngineOutput(msgspec.Struct):
    """The tokens that one step (or, for ranked sequences, the whole generation) added to one sequence.

    `index`: 0..n-1, the sequence. `token_ids` holds the new tokens, end-of-sequence included. `logprobs` is aligned with
    it when asked for; `top_logprobs[i]` lists the N most likely, best first. `prompt_logprobs` (aligned with the prompt,
    first entry None), `num_cached_tokens`, `num_stored_tokens` (of these, those read from disk) and `queue_s` (seconds
    before its first step; None = not known) come with the request's first output; a number of cached tokens that is known
    only later comes with one that ends a sequence.
    `cumulative_logprob` and `num_preemptions` (of the sequence) are set at the end.
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
    """The log-probability the model gave to one prompt token, and the most likely alternatives, best first.

    `rank`: one more than there are tokens that are likelier than it; None = not known.
    """

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
    """One generated or prompt token.

    `text` is what this token adds to the text: "" while a character is incomplete (the completing token carries it whole)
    and for tokens swallowed by a stop string or hidden as special. The concatenated texts equal the sequence's text.
    `token_text` decodes the token alone, whatever happened to its text; `bytes` are its own bytes.
    `rank`: of a prompt token, one more than there are likelier ones.
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
    """Facts about the prompt as it was taken in. `tokens` is filled only when prompt log-probabilities were asked for.

    `num_kept_tokens`: of those that the request wants to have kept, how many another prompt can begin with, found ones
    included; 0 = it wants none.
    """

    text: str
    token_ids: tuple[int, ...]
    tokens: tuple[TokenOutput, ...] = ()
    num_cached_tokens: int = 0
    seed: int = 0
    num_kept_tokens: int = 0


class GenerationEvent(msgspec.Struct, frozen=True):
    """The text that one step added to one sequence. `text` == "".join(token.text for token in tokens).

    `prompt` comes with the request's first event only. `num_cached_tokens`: of the prompt, if they are told later than that.
    `content` is the part of `text` that belongs to the answer when reasoning or tool calls are split off (else equal to
    `text`). It ends before a stop string; where anything is split off, `text` is all that the model wrote.
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
    """A complete tool call; `arguments` is the JSON text as generated."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class SequenceResult:
    """One finished sequence, folded from its events."""

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
    """A finished request: the fold over its event stream."""

    request: GenerationRequest
    prompt: PromptInfo
    sequences: tuple[SequenceResult, ...]

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens, as counted in `usage`."""
        return len(self.prompt.token_ids)

    @property
    def num_completion_tokens(self) -> int:
        """Generated tokens of all returned sequences, end-of-sequence included."""
        return sum(len(sequence.tokens) for sequence in self.sequences)


@dataclass(frozen=True, slots=True)
class PooledText:
    """One text, or pair of texts, of which a model makes one vector or one score.

    `second_from`: where the second text of a pair begins, 0 = there is but one. `num_prompt_tokens`: at its beginning, of
    what goes before the text itself. `num_seen`: the first tokens, which all tokens see; those behind them read and are not
    read; 0 = all are seen. `wants_tokens`: a vector of each token is wanted. `task`: what it is for, the number of one of
    the model's adapters; -1 = nothing of the kind.
    """

    token_ids: Sequence[int]
    second_from: int = 0
    num_prompt_tokens: int = 0
    num_seen: int = 0
    wants_tokens: bool = False
    task: int = -1
