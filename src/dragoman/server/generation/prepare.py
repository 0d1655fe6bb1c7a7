"""Turns a client's request into one for an engine, with tokens, limits and resolved defaults, or refuses it.

The result is legal and is not checked again; the engine refuses what it cannot do. The service calls `Preparer.prepare`
on the event loop, or on a tokenise thread for long prompts. Only the seed it draws keeps that from being pure.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import msgspec

from dragoman.engine.base import Capabilities
from dragoman.errors import CapacityError, InvalidParameter, InvalidRequest, UnsupportedFeature
from dragoman.server.admission import num_characters
from dragoman.server.generation.extensions import Extensions
from dragoman.server.generation.pictures import Encoder, PlacedPicture
from dragoman.server.generation.text_until_stop import parser_of
from dragoman.server.generation.thinking import NO_BOUNDS, ThinkingBounds, ThinkingPlan, told_of
from dragoman.tokenizer.base import FimTokens, Tokenizer
from dragoman.tokenizer.breakers import BreakerFinder
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.tokenizer.message_content import picture_parts
from dragoman.types import (
    USUAL_STANDING,
    ChatPrompt,
    ContextShift,
    EngineRequest,
    GenerationRequest,
    Grammar,
    InfillPrompt,
    Limits,
    MixedPrompt,
    PictureSpan,
    Prompt,
    SamplingParams,
    Standing,
    StopStrings,
    TextPrompt,
    TokenPrompt,
    TraceContext,
    id_outside,
)

MAX_TEXT_CHARS = Limits().max_text_chars
_ROOMY = 8  # characters per token that no language needs: shorter prompts are tokenised without a second look

_SEED_BITS = 53  # every JSON reader keeps such an integer exact, so a client can send it back

_REPOSITORY_NAME, _FILE_NAME = "myproject\n", "filename\n"  # where nobody says what they are; llama.cpp's
_FILE_BREAK = "\n\n--- snippet ---\n\n"  # before files, to models that have no mark for them; llama.cpp's


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """`max_model_len` None = as the engine; it can only make the context shorter.

    `max_prompt_tokens`, `max_completion_tokens`: of a sequence, None = what fits. `request_timeout_s` bounds a request
    from its preparation to its last token, `queue_timeout_s` until its first step begins, None = no bound.
    `prefix_cache_per_key`: callers share no cached prompts. Where the engine shares them, answers do not show it.
    `head_after_s`: seconds after which a request in the engine counts as accepted. Prompts of more than
    `max_inline_chars` characters are prepared off the event loop.
    """

    max_model_len: int | None = None
    request_timeout_s: float | None = None
    max_inline_chars: int = 2_000
    queue_timeout_s: float | None = None
    max_prompt_tokens: int | None = None
    max_completion_tokens: int | None = None
    prefix_cache_per_key: bool = False
    head_after_s: float = 1.0
    thinking: ThinkingBounds = NO_BOUNDS
    shifts_context: bool = False


class Turn(NamedTuple):
    """The caller of a request, and the times by which it must begin and end, in seconds since the epoch."""

    caller: str = ""
    start_by_s: float | None = None
    deadline_s: float | None = None
    standing: Standing = USUAL_STANDING
    trace: TraceContext | None = None


class PromptTokens(NamedTuple):
    """`text` is what the model saw, but for the first part of a text with a suffix, and a marker for each picture."""

    text: str
    token_ids: tuple[int, ...]
    pictures: tuple[PictureSpan, ...] = ()


class PreparedRequest(NamedTuple):
    """`request`: the client's, with the grammar that applies."""

    prompt_text: str
    engine_request: EngineRequest
    request: GenerationRequest


@dataclass(frozen=True, slots=True)
class Preparer:
    """Prepares the requests for one model. Immutable. `thinking` None = the model has no known reasoning."""

    model_name: str
    capabilities: Capabilities
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    limits: ServiceLimits
    extensions: Extensions
    thinking: ThinkingPlan | None
    breakers: BreakerFinder

    @property
    def max_model_len(self) -> int:
        """The context length: prompt and completion tokens of one sequence."""
        limit = self.limits.max_model_len
        return self.capabilities.max_model_len if limit is None else min(limit, self.capabilities.max_model_len)

    def is_long(self, request: GenerationRequest) -> bool:
        """True if preparing would hold up the event loop."""
        sampling = request.sampling
        if self.has_grammar(request) or self.has_process(request.prompt):
            return True
        if sampling.has_dry and not self.breakers.is_quick(sampling.dry_sequence_breakers):
            return True
        num_chars = num_characters(request.prompt) + sum(map(len, sampling.bad_words))
        return num_chars > self.limits.max_inline_chars

    def has_process(self, prompt: Prompt) -> bool:
        """True if a process renders the prompt, for which a thread has to wait."""
        template = self.chat_template
        return isinstance(prompt, ChatPrompt) and template is not None and not template.renders_at_once(prompt)

    def has_grammar(self, request: GenerationRequest) -> bool:
        return request.sampling.grammar is not None or request.parse_tool_calls

    def prepare(self, request: GenerationRequest, turn: Turn) -> PreparedRequest:
        """Raises: InvalidRequest (a prompt or parameter this model cannot take), UnsupportedFeature, CapacityError."""
        sampling = request.sampling
        self._check_token_ids(sampling)
        if request.biased_texts:
            sampling = msgspec.structs.replace(sampling, logit_bias=self._logit_bias(request))
            request = msgspec.structs.replace(request, sampling=sampling)
        if "" in request.stop:
            raise InvalidParameter("stop must not hold an empty string", param="stop")
        _check_truncation(request)
        template, plan = self.chat_template, self._thinking_plan(request)
        budget, prompt = None, request.prompt
        if plan is not None:
            budget = plan.budget_of(request, {} if template is None else template.default_kwargs)
            prompt = told_of(prompt, budget)
        text, token_ids, pictures = self.tokenize(prompt, self._max_prompt_len(request))
        token_ids = token_ids or self._empty_prompt()
        grammar = self._grammar(request, text)
        if grammar is not sampling.grammar:
            sampling = msgspec.structs.replace(sampling, grammar=grammar)
            request = msgspec.structs.replace(request, sampling=sampling)
        thinking = None if plan is None else plan.thinking_of(request, text, budget)
        budget = budget if thinking is not None else None  # where nothing is thought, nothing is bounded
        if budget != sampling.thinking_token_budget:
            sampling = msgspec.structs.replace(sampling, thinking_token_budget=budget)
        seen = text
        if (keep := request.truncate_prompt_tokens) is not None and keep < len(token_ids):
            token_ids = token_ids[-keep:]
            seen = self.tokenizer.decode(token_ids, skip_special_tokens=False)
        may_shift = self.limits.shifts_context and request.may_shift and not pictures and sampling.num_beams == 1
        max_tokens = self._max_tokens(len(token_ids), request, may_shift=may_shift)
        return PreparedRequest(
            seen,
            EngineRequest(
                request_id=request.request_id,
                prompt_ids=token_ids,
                sampling=sampling,
                max_tokens=max_tokens,
                seed=(self.extensions.draw_seed or _draw_seed)() if sampling.seed is None else sampling.seed,
                eos_token_ids=self._eos_token_ids(request),
                bad_word_ids=self._bad_word_ids(sampling.bad_words),
                stop=self._watched_stops(request, text),
                deadline_s=turn.deadline_s,
                adapter=request.adapter or None,
                pictures=pictures,
                trace=turn.trace,
                priority=turn.standing.priority_of(request.priority),
                cache_salt=request.cache_salt,
                cache_keep_s=request.cache_keep_s,
                cache_key=request.cache_key,
                cache_owner=f"key {turn.caller}" if self.limits.prefix_cache_per_key else "",
                caller=turn.caller,
                start_by_s=turn.start_by_s,
                share=turn.standing.share,
                is_background=turn.standing.is_background,
                dry_breakers=self.breakers.find(sampling.dry_sequence_breakers) if sampling.has_dry else (),
                thinking=thinking,
                shift=self._shift(token_ids, max_tokens, request),
            ),
            request,
        )

    def tokenize(self, prompt: Prompt, most: int | None = None) -> PromptTokens:
        """Refuses what cannot have at most `most` tokens. Raises: InvalidRequest, UnsupportedFeature, CapacityError."""
        match prompt:
            case TextPrompt(suffix=None):
                self._check_text(prompt.text, most)
                ids = tuple(self.tokenizer.encode(prompt.text, add_special_tokens=prompt.add_special_tokens))
                return PromptTokens(prompt.text, self._after(prompt.before_ids, ids))
            case TextPrompt(suffix=suffix):
                assert suffix is not None  # the case above
                self._check_text(prompt.text + suffix, most)
                return PromptTokens(prompt.text, tuple(self._fim_ids(prompt, suffix)))
            case TokenPrompt(token_ids=ids):
                if most is not None and len(ids) > most:
                    raise self._too_long(f"your prompt alone has {len(ids)} tokens", len(ids))
                self.check_vocabulary(ids, "prompt")
                return self._as_decoded(ids)
            case MixedPrompt():
                return self._as_decoded(self._mixed_ids(prompt, most))
            case InfillPrompt():
                return self._as_decoded(self._infill_ids(prompt, most))
            case ChatPrompt():
                plain = self.extensions.plain
                prompt, hidden = (prompt, None) if plain is None else plain.hidden(prompt)
                text = self._render(prompt)
                shown = text if hidden is None else hidden.shown(text)
                encoder = self.tokenizer if hidden is None else hidden
                if prompt.pictures:
                    return self._tokenize_with_pictures(text, prompt, most, encoder)._replace(text=shown)
                self._check_text(shown, most)
                ids = tuple(encoder.encode(text, add_special_tokens=False))
                return PromptTokens(shown, self._after(prompt.before_ids, ids))

    def check_vocabulary(self, token_ids: Collection[int], name: str) -> None:
        """Raises: InvalidRequest naming an id that the model has no row for."""
        size = self.capabilities.vocab_size
        if (token_id := id_outside(token_ids, size)) is not None:
            raise InvalidRequest(
                f"{name} holds token id {token_id}, which is outside the vocabulary: allowed are 0 to {size - 1}",
                param=name,
            )

    def _thinking_plan(self, request: GenerationRequest) -> ThinkingPlan | None:
        if self.thinking is None or isinstance(request.prompt, ChatPrompt):
            return self.thinking
        sampling = request.sampling
        is_said = sampling.thinking_token_budget is not None or sampling.repetition_detection is not None
        return self.thinking if is_said else None

    def _watched_stops(self, request: GenerationRequest, prompt_text: str) -> StopStrings | None:
        """None where an engine need not watch for stop strings, or cannot tell what is content."""
        if not request.stop:
            return None
        stops = StopStrings(request.stop, request.skip_special_tokens)
        if parser_of(self.extensions.make_parser, request, prompt_text) is None:
            return stops
        is_ranked = request.sampling.num_sequences > request.sampling.n
        find = self.extensions.unsearched
        found = find(request, prompt_text) if is_ranked and find is not None else None
        return None if found is None else msgspec.structs.replace(stops, unsearched=found)

    # --- prompts ------------------------------------------------------------------------------------------------------

    def _after(self, before_ids: tuple[int, ...], ids: tuple[int, ...]) -> tuple[int, ...]:
        if not before_ids:
            return ids
        self.check_vocabulary(before_ids, "context")
        return before_ids + ids

    def _render(self, prompt: ChatPrompt) -> str:
        if self.chat_template is None:
            raise UnsupportedFeature(
                f"messages are not supported: model {self.model_name} has no chat template; send a prompt instead",
                param="messages",
            )
        return self.chat_template.render(prompt)

    def _tokenize_with_pictures(
        self, text: str, prompt: ChatPrompt, most: int | None, encoder: Encoder
    ) -> PromptTokens:
        pictures = self.extensions.pictures
        assert pictures is not None  # else the template has refused them
        placed: list[PlacedPicture] = []
        num_embeddings = num_chars = 0
        for part, picture in zip(picture_parts(prompt.messages), prompt.pictures, strict=True):
            placed.append(pictures.place(part, picture))
            num_embeddings += placed[-1].text.num_embeddings
            num_chars += len(placed[-1].text.text)
            if most is not None and num_embeddings > most:
                raise self._too_long(f"the pictures of your prompt alone have {num_embeddings} tokens", num_embeddings)
            check_num_chars(num_chars)
        placed = pictures.ordered(placed, text)
        pieces = pictures.pieces(text, placed)
        self._check_text("".join(pieces), most)
        ids = pictures.encoded(pieces, encoder)
        return PromptTokens(text, ids, pictures.spans(ids, placed, self.tokenizer))

    def _empty_prompt(self) -> tuple[int, ...]:
        tokenizer = self.tokenizer
        start = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        if start is None:
            raise InvalidRequest(
                f"prompt must not be empty: model {self.model_name} has no begin-of-sequence token", param="prompt"
            )
        return (start,)

    def _as_decoded(self, ids: tuple[int, ...]) -> PromptTokens:
        return PromptTokens(self.tokenizer.decode(ids, skip_special_tokens=False), ids)

    def _mixed_ids(self, prompt: MixedPrompt, most: int | None) -> tuple[int, ...]:
        self._check_text("".join([part for part in prompt.parts if isinstance(part, str)]), most)
        self.check_vocabulary([part for part in prompt.parts if not isinstance(part, str)], "prompt")
        ids: list[int] = []
        for position, part in enumerate(prompt.parts):
            if not isinstance(part, str):
                ids.append(part)
            elif position == 0:
                ids += self.tokenizer.encode(part)
            else:
                ids += self.tokenizer.encode_continuation(part)
        return tuple(ids)

    def _fim_ids(self, prompt: TextPrompt, suffix: str) -> list[int]:
        fim = self._fim_tokens("suffix")
        text_ids = self.tokenizer.encode(prompt.text, add_special_tokens=False)
        ids = fim.arrange(text_ids, self.tokenizer.encode_continuation(suffix))
        return [*(self._begin_ids() if prompt.add_special_tokens else ()), *ids]

    def _infill_ids(self, prompt: InfillPrompt, most: int | None) -> tuple[int, ...]:
        check_num_chars(num_characters(prompt))
        fim, plain = self._fim_tokens("input_suffix"), partial(self.tokenizer.encode_plain, is_first=False)
        begun = self.tokenizer.encode_continuation(prompt.begun)
        before, behind = self.tokenizer.encode_plain(prompt.before, is_first=True), plain(prompt.behind)
        begin, length = self._begin_ids(), self.max_model_len if most is None else most
        num_marks = len(begin) + len(fim.arrange((), ()))
        room = max(length - max(prompt.num_answer_tokens, 1) - num_marks - len(begun), 0)
        if len(before) + len(behind) > room:
            num_behind = min(len(behind), max(room // 4, room - len(before)))
            before, behind = _last(before, room - num_behind), behind[:num_behind]
        files = _last(self._file_ids(prompt.files, fim), room - len(before) - len(behind))
        return (*begin, *files, *fim.arrange([*before, *begun], behind))

    def _file_ids(self, files: Sequence[tuple[str, str]], fim: FimTokens) -> list[int]:
        plain = partial(self.tokenizer.encode_plain, is_first=False)
        ids = [] if fim.repository is None else [fim.repository, *plain(_REPOSITORY_NAME)]
        for name, text in files:
            ids += plain(_FILE_BREAK) if fim.file is None else [fim.file, *plain(f"{name}\n")]
            ids += plain(text)
        return ids if fim.file is None else [*ids, fim.file, *plain(_FILE_NAME)]

    def _fim_tokens(self, param: str) -> FimTokens:
        fim = self.tokenizer.fim_tokens
        if fim is None:
            raise UnsupportedFeature(
                f"{param} is not supported: model {self.model_name} has no fill-in-the-middle tokens", param=param
            )
        return fim

    def _begin_ids(self) -> list[int]:
        bos = self.tokenizer.bos_token_id
        return [] if bos is None or self.tokenizer.encode("")[:1] != [bos] else [bos]

    # --- limits -------------------------------------------------------------------------------------------------------

    def _eos_token_ids(self, request: GenerationRequest) -> frozenset[int]:
        """The tokens that end a sequence. A plain text may have several turns; but a turn's end also ends a grammar."""
        is_turn = isinstance(request.prompt, ChatPrompt) or request.sampling.grammar is not None
        return self.tokenizer.eos_token_ids | self.extensions.turn_end_ids if is_turn else self.tokenizer.eos_token_ids

    def _max_prompt_len(self, request: GenerationRequest) -> int | None:
        if request.truncate_prompt_tokens is not None:
            return None
        most = self.limits.max_prompt_tokens
        return self.max_model_len if most is None else min(most, self.max_model_len)

    def _check_text(self, text: str, most: int | None) -> None:
        """Raises: CapacityError, before megabytes of text take seconds and gigabytes to tokenise."""
        if most is not None and len(text) > _ROOMY * most:
            least = len(text) // self.tokenizer.max_token_chars
            if least > most:
                raise self._too_long(f"your prompt alone has at least {least} tokens", least)
        check_num_chars(len(text))

    def _too_long(self, problem: str, num_prompt: int) -> CapacityError:
        most = self.limits.max_prompt_tokens
        if most is None or most >= self.max_model_len:
            return self._overflow(num_prompt, None, problem, "prompt")
        return CapacityError(
            f"A prompt may have at most {most} tokens here. However, {problem}. Please shorten the prompt.",
            param="prompt",
            num_prompt_tokens=num_prompt,
            max_model_len=most,
        )

    def _shift(self, token_ids: tuple[int, ...], max_tokens: int, request: GenerationRequest) -> ContextShift | None:
        if len(token_ids) + max_tokens <= self.max_model_len:
            return None
        num_kept = request.n_keep + (token_ids[0] == self.tokenizer.bos_token_id)
        return ContextShift(self.max_model_len, len(token_ids) if request.n_keep < 0 else num_kept, request.n_discard)

    def _max_tokens(self, num_prompt: int, request: GenerationRequest, *, may_shift: bool) -> int:
        most_prompt, most = self.limits.max_prompt_tokens, self.limits.max_completion_tokens
        room, wanted = self.max_model_len - num_prompt, request.max_tokens
        if most_prompt is not None and num_prompt > most_prompt:
            raise self._too_long(f"your prompt alone has {num_prompt} tokens", num_prompt)
        if room < 1:
            raise self._overflow(num_prompt, wanted, f"your prompt alone has {num_prompt} tokens", "prompt")
        if wanted is None:
            return room if most is None else most if may_shift else min(room, most)
        is_clipped = request.on_overflow == "clip"
        if most is not None and wanted > most:
            if not is_clipped:
                raise InvalidParameter(f"max_tokens must be at most {most} here, got {wanted}", param="max_tokens")
            wanted = most
        if wanted > room and not may_shift:
            if is_clipped:
                return room
            detail = f"{num_prompt} in the prompt, {wanted} for the completion"
            raise self._overflow(
                num_prompt, wanted, f"you requested {num_prompt + wanted} tokens ({detail})", "max_tokens"
            )
        return wanted

    def _overflow(self, num_prompt: int, wanted: int | None, problem: str, param: str) -> CapacityError:
        limit = self.max_model_len
        advice = "shorten the prompt" if param == "prompt" else "shorten the prompt or lower max_tokens"
        return CapacityError(
            # Clients look for "maximum context length" to tell this error from others, and shorten their prompt.
            f"This model's maximum context length is {limit} tokens. However, {problem}. Please {advice}.",
            param=param,
            num_prompt_tokens=num_prompt,
            max_tokens=wanted,
            max_model_len=limit,
        )

    def _check_token_ids(self, sampling: SamplingParams) -> None:
        """Raises: InvalidParameter for ids outside the vocabulary, which samplers index by."""
        if (
            not (sampling.logit_bias or sampling.stop_token_ids) and sampling.allowed_token_ids is None
        ):  # as nearly always
            return
        size = self.capabilities.vocab_size
        named = {
            "logit_bias": sampling.logit_bias,
            "allowed_token_ids": sampling.allowed_token_ids or (),
            "stop_token_ids": sampling.stop_token_ids,
        }
        for name, token_ids in named.items():
            if (token_id := id_outside(token_ids, size)) is not None:
                raise InvalidParameter(
                    f"{name} must hold token ids from 0 to {size - 1} only, got {token_id}", param=name
                )
        if sampling.allowed_token_ids == ():
            raise InvalidParameter(
                "allowed_token_ids must hold at least one token id, got []", param="allowed_token_ids"
            )

    def _logit_bias(self, request: GenerationRequest) -> dict[int, float]:
        """The bias of each token, those of texts included; an id that is named itself counts for itself."""
        texts = {
            token_id: bias
            for text, bias in request.biased_texts.items()
            for token_id in self.tokenizer.encode_plain(text, is_first=False)
        }
        return {**texts, **request.sampling.logit_bias}

    # --- what engines cannot work out themselves ----------------------------------------------------------------------

    def _bad_word_ids(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Each word as tokens, inside a text and after a space."""
        if not words:
            return ()
        variants = dict.fromkeys(form for word in words for form in (word, word if word[:1] == " " else f" {word}"))
        encoded = dict.fromkeys(tuple(self.tokenizer.encode_continuation(form)) for form in variants)
        return tuple(ids for ids in encoded if ids)

    def _grammar(self, request: GenerationRequest, prompt_text: str) -> Grammar | None:
        """Raises: InvalidRequest if a demanded grammar or call cannot be enforced. One nobody asked for is left out."""
        grammar = request.sampling.grammar
        is_conversation = isinstance(request.prompt, ChatPrompt)
        constrain = self.extensions.constrain
        wanted = constrain(request, prompt_text) if constrain is not None and is_conversation else grammar
        if wanted is grammar:
            return self._compiled(grammar)
        is_forced = request.tool_choice not in ("auto", "none", None)
        if wanted is not None and not self._can_follow(wanted):
            if is_forced:
                raise UnsupportedFeature(
                    f"tool_choice {_asked_choice(request)} is not supported by the engine of model {self.model_name}: "
                    "it must be auto or none",
                    param="tool_choice",
                )
            if wanted.needs_frame and grammar is not None and self._can_follow(grammar):
                raise UnsupportedFeature(
                    f"a grammar behind reasoning is not supported by the engine of model {self.model_name}: response_format "
                    f"and other ways to ask for {grammar.kind} must be left out where the model thinks first",
                    param="response_format",
                )
            return grammar
        try:
            return self._compiled(wanted)
        except InvalidRequest as error:
            if is_forced:
                problem = f"tools cannot be called as tool_choice {_asked_choice(request)} asks"
                self._check_tools(request, problem)
                raise InvalidParameter(f"{problem}: {error.message}", param="tools") from error
        return self._compiled(grammar)

    def _check_tools(self, request: GenerationRequest, problem: str) -> None:
        assert isinstance(request.prompt, ChatPrompt)
        for function in (tool["function"] for tool in request.prompt.tools):
            if request.called_tool in ("", function["name"]):
                schema = json.dumps(function.get("parameters") or {})
                try:
                    self._compiled(Grammar("json_schema", schema, param=f"tool {function['name']}"))
                except InvalidRequest as error:
                    raise InvalidParameter(f"{problem}: {error.message}", param="tools") from error

    def _compiled(self, grammar: Grammar | None) -> Grammar | None:
        """Raises: InvalidRequest. The engine reports what cannot be known here."""
        if grammar is not None and self._can_follow(grammar):
            assert self.extensions.compile_grammar is not None
            self.extensions.compile_grammar(grammar)
        return grammar

    def _can_follow(self, grammar: Grammar) -> bool:
        return self.extensions.compile_grammar is not None and self.capabilities.can_follow(grammar)


def _last(ids: list[int], count: int) -> list[int]:
    return ids[max(len(ids) - count, 0) :]


def check_num_chars(count: int) -> None:
    """Raises: CapacityError for more characters than are tokenised at all."""
    if count > MAX_TEXT_CHARS:
        raise CapacityError(f"A prompt must have at most {MAX_TEXT_CHARS} characters, got {count}", param="prompt")


def _check_truncation(request: GenerationRequest) -> None:
    keep = request.truncate_prompt_tokens
    if keep is None:
        return
    if keep < 1:
        raise InvalidParameter(f"truncate_prompt_tokens must be at least 1, got {keep}", param="truncate_prompt_tokens")
    if isinstance(request.prompt, ChatPrompt) and request.prompt.pictures:
        raise UnsupportedFeature(
            f"truncate_prompt_tokens {keep} is not supported together with pictures, which cannot be cut: leave it out",
            param="truncate_prompt_tokens",
        )
    if isinstance(request.prompt, TextPrompt) and request.prompt.suffix is not None:
        raise UnsupportedFeature(
            f"truncate_prompt_tokens {keep} is not supported together with suffix: it would cut off the prefix token; "
            "leave it out",
            param="truncate_prompt_tokens",
        )


def _asked_choice(request: GenerationRequest) -> str:
    return request.called_tool or str(request.tool_choice)


def _draw_seed() -> int:
    return int.from_bytes(os.urandom(8)) >> (64 - _SEED_BITS)
