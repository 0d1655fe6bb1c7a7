"""Turns texts to embed, score or classify into the model's tokens. On the event loop for short texts, else on threads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

from dragoman.errors import CapacityError, InvalidParameter
from dragoman.server.pooling.base import ClassifyRequest, EmbedRequest, PoolingFacts, ScoreRequest, Text, Truncation
from dragoman.tokenizer.frames import Frame, Side, cut, cut_pair
from dragoman.tokenizer.hf_tokenizer import HfTokenizer
from dragoman.types import PooledText, id_outside

_SHORT_CHARS = 65_536  # a text that is tokenised however few tokens it may have: it may be made of blanks
_GROUP_CHARS = 262_144  # that are tokenised together, before the next texts are looked at

_MOST_PIECES = 10_000  # of all documents of a call

_PLACES = re.compile(r"\{(?:instruction|query|document)\}")


class PairQuestion(NamedTuple):
    """The form of a pair as one text for a model; `body` has {instruction}, {query} and {document}, in that order."""

    before: str
    body: str
    after: str
    instruction: str


@dataclass(frozen=True, slots=True)
class LateWriting:
    """The form of texts for late interaction: tokens before queries and documents, the most tokens of a document.

    `query_length`: the length to fill queries up to with `mask_id`, 0 = none; `sees_expansion`: other tokens see those.
    `skipped`: tokens of documents whose vectors do not count.
    """

    query_prefix: tuple[int, ...]
    document_prefix: tuple[int, ...]
    document_length: int
    query_length: int
    mask_id: int
    sees_expansion: bool
    skipped: frozenset[int]


class _Bounds(NamedTuple):
    """The bounds of a request's texts or pairs. `longest`: tokens of one, special ones included.

    `max_pieces`: of a document that is too long. `most`: tokens of a document or piece, None = what fits.
    """

    longest: int
    truncation: Truncation
    max_pieces: int = 1
    most: int | None = None

    def check(self, num_tokens: int, label: str) -> None:
        """Raises: CapacityError for more tokens than `longest`, unless they may be cut off."""
        if num_tokens > self.longest and self.truncation is Truncation.NONE:
            raise CapacityError(
                f"{label} has {num_tokens} tokens, allowed: at most {self.longest}",
                param="texts",
                num_prompt_tokens=num_tokens,
                max_model_len=self.longest,
            )


@dataclass(frozen=True, slots=True)
class TextPreparer:
    """Prepares the requests for one model. Raises: InvalidParameter, CapacityError."""

    tokenizer: HfTokenizer
    facts: PoolingFacts
    question: PairQuestion | None = None
    lowers_case: bool = False
    late: LateWriting | None = None

    # --- embedding ----------------------------------------------------------------------------------------------------

    def embedded(self, request: EmbedRequest) -> list[PooledText]:
        name = self._prompt_name(request)
        prompt = "" if name is None else self.facts.prompts[name]
        made = self._framed(request, self._longest(request.max_tokens), self._frame(request), prompt)
        if name not in self.facts.tasks:
            return made
        task = self.facts.tasks.index(name)
        return [replace(text, task=task) for text in made]

    def _frame(self, request: EmbedRequest | ClassifyRequest) -> Frame:
        return self.tokenizer.frame if request.add_special_tokens else Frame((), (), ())

    def _framed(self, request: EmbedRequest, longest: int, frame: Frame, prompt: str = "") -> list[PooledText]:
        most = self.facts.dimensions
        if request.dimensions is not None and not 1 <= request.dimensions <= most:
            message = f"dimensions must be between 1 and {most}, got {request.dimensions}"
            raise InvalidParameter(message, param="dimensions")
        if not request.texts:
            raise InvalidParameter("texts must hold at least one text, got none", param="texts")
        bounds = _Bounds(longest, request.truncation)
        tokens = self._encoded(
            self._bounded((prompt, text), f"text {index}", bounds)
            for index, text in enumerate(request.texts)
            if isinstance(text, str)
        )
        right = _Bounds(longest, Truncation.RIGHT)
        num_prompt = len(next(self._encoded([self._bounded((prompt,), "", right)]))) if prompt else 0
        return [
            self._embedded(text, index, tokens, frame, num_prompt, bounds) for index, text in enumerate(request.texts)
        ]

    def _prompt_name(self, request: EmbedRequest) -> str | None:
        name, prompts = request.prompt_name, self.facts.prompts
        if name is None:
            return self.facts.default_prompt_name
        if name not in prompts:
            allowed = ", ".join(prompts) or "none, as this model has no prompts"
            raise InvalidParameter(f"prompt_name {name[:80]!r} is unknown, allowed: {allowed}", param="prompt_name")
        return name

    def _embedded(
        self,
        text: Text,
        index: int,
        tokens: Iterator[Sequence[int]],
        frame: Frame,
        num_prompt: int,
        bounds: _Bounds,
    ) -> PooledText:
        label = f"text {index}"
        if isinstance(text, str):
            framed = frame.around(_fitted(next(tokens), frame.num_special, label, bounds))
            num_skipped = min(len(frame.before) + num_prompt, len(framed)) if num_prompt else 0
        else:
            framed, num_skipped = tuple(_fitted(text, 0, label, bounds)), 0
            self._check_ids(framed, index)
        if not framed:  # a model cannot look at nothing
            raise InvalidParameter(f"text {index} has no tokens, allowed: at least one", param="texts")
        return PooledText(framed, 0, num_skipped)

    def _check_ids(self, token_ids: Sequence[int], index: int) -> None:
        most = self.facts.vocab_size
        if (wrong := id_outside(token_ids, most)) is not None:
            raise InvalidParameter(f"text {index} has token {wrong}, allowed: 0 to {most - 1}", param="texts")

    # --- tokens of late interaction -----------------------------------------------------------------------------------

    def written(self, request: EmbedRequest) -> list[PooledText]:
        """The texts of a request, as queries or documents of late interaction."""
        late = self.late
        assert late is not None
        is_query = self._prompt_name(request) == "query"
        prefix = late.query_prefix if is_query else late.document_prefix
        longest = self._longest(request.max_tokens)
        longest = min(longest, (late.query_length or longest) if is_query else late.document_length)
        frame = self._frame(request)
        made = self._framed(request, longest, Frame((*frame.before, *prefix), (), frame.behind))
        return [self._expanded(text, late) for text in made] if is_query else made

    def _expanded(self, text: PooledText, late: LateWriting) -> PooledText:
        count = len(text.token_ids)
        more = min(late.query_length, self.facts.max_tokens) - count
        if more <= 0:
            return text
        return PooledText((*text.token_ids, *[late.mask_id] * more), num_seen=0 if late.sees_expansion else count)

    # --- classifying --------------------------------------------------------------------------------------------------

    def classified(self, request: ClassifyRequest) -> list[PooledText]:
        bounds = _Bounds(self._longest(request.max_tokens), request.truncation)
        tokens = self._encoded(
            self._bounded((part,), f"text {index}", bounds)
            for index, text in enumerate(request.texts)
            for part in parts_of(text)
        )
        frame = self._frame(request)
        made = []
        for index, text in enumerate(request.texts):
            if is_pair(text):
                made += self._pair(next(tokens), next(tokens), f"text {index}", bounds)
            else:
                made.append(self._embedded(cast(Text, text), index, tokens, frame, 0, bounds))
        return made

    # --- scoring ------------------------------------------------------------------------------------------------------

    def scored(self, request: ScoreRequest) -> list[list[PooledText]]:
        """The pieces of each pair of a request."""
        pieces = self._scored(request)
        count = sum(map(len, pieces))
        if count > max(_MOST_PIECES, len(pieces)):
            raise InvalidParameter(
                f"pairs must add up to at most {_MOST_PIECES} pieces, got {count}: send fewer documents, or shorter ones",
                param="pairs",
            )
        return pieces

    def _scored(self, request: ScoreRequest) -> list[list[PooledText]]:
        longest = self._longest(request.max_tokens)
        bounds = _Bounds(longest, request.truncation, request.max_pieces, request.max_document_tokens)
        if request.instruction is not None and self.question is None:
            raise InvalidParameter("instruction must be left out: this model takes none", param="instruction")
        if self.question is not None:
            return self._asked(request, self.question, bounds)
        tokens = self._encoded(
            self._bounded((text,), f"pair {index}", bounds) for index, pair in enumerate(request.pairs) for text in pair
        )
        return [self._pair(next(tokens), next(tokens), f"pair {index}", bounds) for index in range(len(request.pairs))]

    def _pair(self, first: Sequence[int], second: Sequence[int], label: str, bounds: _Bounds) -> list[PooledText]:
        """A pair, or its pieces."""
        frame = self.tokenizer.pair_frame
        room, most = max(bounds.longest - frame.num_special, 0), bounds.most
        is_cut = bounds.max_pieces > 1
        second = second if is_cut else second[:most]
        pieces = [second]
        if is_cut and most is not None and len(second) > most and 2 * len(first) <= room:
            pieces = _pieces(second, min(room - len(first), most), bounds.max_pieces)
        elif len(first) + len(second) > room:
            bounds.check(len(first) + len(second) + frame.num_special, label)
            query = first[
                : bounds.longest // 2
            ]  # as OVMS has it: a longer one leaves a document no room that is worth it
            if is_cut and len(query) < room:
                first, pieces = query, _pieces(second, min(room - len(query), most or room), bounds.max_pieces)
            else:
                first, second = cut_pair(first, second, room, _side(bounds.truncation))
                pieces = [second]
        pairs = (frame.pair(first, piece) for piece in pieces)
        return [PooledText(pair.token_ids, pair.second_from) for pair in pairs]

    def _asked(self, request: ScoreRequest, question: PairQuestion, bounds: _Bounds) -> list[list[PooledText]]:
        before, behind = self.tokenizer.encode_all([question.before, question.after])
        instruction = question.instruction if request.instruction is None else request.instruction
        parts = _PLACES.split(question.body)

        def head_of(query: str) -> str:
            return "".join((parts[0], instruction, parts[1], query, parts[2]))

        texts = (
            self._bounded((head_of(query), document, *parts[3:]), f"text {index}", bounds)
            for index, (query, document) in enumerate(request.pairs)
        )
        num_around, most = len(before) + len(behind), bounds.most
        room = max(bounds.longest - num_around, 0)
        made = []
        for index, body in enumerate(self._encoded(texts)):
            pieces = None
            is_cut = len(body) > room and bounds.max_pieces > 1 and bounds.truncation is not Truncation.NONE
            if is_cut or (most is not None and len(body) > most):
                pieces = self._pieces_asked(head_of(request.pairs[index][0]), body, room, bounds)
            if pieces is None:
                pieces = [_fitted(body, num_around, f"text {index}", bounds)]
            made.append([PooledText((*before, *piece, *behind)) for piece in pieces])
        return made

    def _pieces_asked(self, head: str, body: Sequence[int], room: int, bounds: _Bounds) -> list[Sequence[int]] | None:
        """The question with each piece of its document; None if too little room is left."""
        tokens = next(self._encoded([head]))
        count = 0
        while count < min(len(tokens), len(body)) and tokens[count] == body[count]:
            count += 1
        if 2 * count > room:
            return None
        size = min(room - count, bounds.most or room)
        return [(*body[:count], *piece) for piece in _pieces(body[count:], size, bounds.max_pieces)]

    # --- both ---------------------------------------------------------------------------------------------------------

    def _encoded(self, texts: Iterable[str]) -> Iterator[Sequence[int]]:
        """The tokens of each text, made in groups: where one is refused, those behind it are not even put together."""
        group: list[str] = []
        seen: set[str] = set()
        num_chars = 0
        for text in texts:
            group.append(text)
            num_chars += 0 if text in seen else len(text)
            seen.add(text)
            if num_chars > _GROUP_CHARS:
                yield from self._encoded_group(group)
                group, seen, num_chars = [], set(), 0
        yield from self._encoded_group(group)

    def _encoded_group(self, texts: Sequence[str]) -> Iterator[Sequence[int]]:
        different = dict.fromkeys(texts)
        encoded = self.tokenizer.encode_all([text.lower() if self.lowers_case else text for text in different])
        found = dict(zip(different, encoded, strict=True))
        return (found[text] for text in texts)

    def _bounded(self, parts: Sequence[str], label: str, bounds: _Bounds) -> str:
        """The text made of `parts`, without what surely lies behind its last token; so megabytes are not tokenised."""
        longest, truncation = bounds.longest, bounds.truncation
        num_chars, most = sum(map(len, parts)), max(2 * longest * self.tokenizer.max_token_chars, _SHORT_CHARS)
        most *= bounds.max_pieces
        if num_chars <= most:
            return "".join(parts)
        if truncation is Truncation.NONE:
            raise CapacityError(
                f"{label} has {num_chars} characters, which make more than {longest} tokens, allowed: at most {longest}",
                param="texts",
                num_prompt_tokens=max(num_chars // self.tokenizer.max_token_chars, longest + 1),
                max_model_len=longest,
            )
        kept: list[str] = []
        for part in parts if truncation is Truncation.RIGHT else reversed(parts):
            kept.append(part[:most] if truncation is Truncation.RIGHT else part[max(len(part) - most, 0) :])
            most -= len(kept[-1])
        return "".join(kept if truncation is Truncation.RIGHT else reversed(kept))

    def longest_document(self, most: int, prompt_name: str | None) -> int:
        """The tokens of a text with `most` tokens and all that is put around it, at most what the model takes."""
        if self.late is not None:
            before: Sequence[int] = self.late.document_prefix
        else:
            name = prompt_name or self.facts.default_prompt_name
            before = self.tokenizer.encode_all(["" if name is None else self.facts.prompts[name]])[0]
        return min(self.facts.max_tokens, most + len(before) + self.tokenizer.frame.num_special)

    def _longest(self, wanted: int | None) -> int:
        most = self.facts.max_tokens
        if wanted is None:
            return most
        if not 1 <= wanted <= most:
            raise InvalidParameter(f"max_tokens must be between 1 and {most}, got {wanted}", param="max_tokens")
        return wanted


def is_pair(text: Text | tuple[str, str]) -> bool:
    return isinstance(text, tuple) and len(text) == 2 and isinstance(text[0], str)


def parts_of(text: Text | tuple[str, str]) -> tuple[str, ...]:
    """The strings that are tokenised; of token ids none."""
    parts = (text,) if isinstance(text, str) else text
    return tuple(part for part in parts if isinstance(part, str))


def _fitted(token_ids: Sequence[int], num_around: int, label: str, bounds: _Bounds) -> Sequence[int]:
    """The tokens, cut so that they fit together with the `num_around` others. Raises: CapacityError."""
    bounds.check(len(token_ids) + num_around, label)
    return cut(token_ids, max(bounds.longest - num_around, 0), _side(bounds.truncation))


def _pieces(token_ids: Sequence[int], room: int, most: int) -> list[Sequence[int]]:
    return [token_ids[begin : begin + room] for begin in range(0, len(token_ids), room)][:most]


def _side(truncation: Truncation) -> Side:
    return "left" if truncation is Truncation.LEFT else "right"
