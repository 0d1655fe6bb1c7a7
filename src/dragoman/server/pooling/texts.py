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
            told = f"dimensions must be between 1 and {most}, got {request.dimensions}"
            raise InvalidParameter(told, param="dimensions")
        if not request.texts:
            raise InvalidParameter("texts must hold at least one text, got none", param="texts")
        truncation = request.truncation
        tokens = self._encoded(
            self._bounded((prompt, text), f"text {index}", longest, truncation)
            for index, text in enumerate(request.texts)
            if isinstance(text, str)
        )
        num_prompt = (
            len(next(self._encoded([self._bounded((prompt,), "", longest, Truncation.RIGHT)]))) if prompt else 0
        )
        return [
            self._embedded(text, index, tokens, frame, num_prompt, longest, truncation)
            for index, text in enumerate(request.texts)
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
        longest: int,
        truncation: Truncation,
    ) -> PooledText:
        if isinstance(text, str):
            own = self._fitted(next(tokens), longest - frame.num_special, index, frame.num_special, longest, truncation)
            framed = frame.around(own)
            num_skipped = min(len(frame.before) + num_prompt, len(framed)) if num_prompt else 0
        else:
            framed, num_skipped = tuple(self._fitted(text, longest, index, 0, longest, truncation)), 0
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
        longest = self._longest(request.max_tokens)
        tokens = self._encoded(
            self._bounded((part,), f"text {index}", longest, request.truncation)
            for index, text in enumerate(request.texts)
            for part in parts_of(text)
        )
        frame = self._frame(request)
        made = []
        for index, text in enumerate(request.texts):
            if is_pair(text):
                made += self._pair(next(tokens), next(tokens), f"text {index}", longest, request.truncation, 1)
            else:
                alone = cast(Text, text)
                made.append(self._embedded(alone, index, tokens, frame, 0, longest, request.truncation))
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
        if request.instruction is not None and self.question is None:
            raise InvalidParameter("instruction must be left out: this model takes none", param="instruction")
        if self.question is not None:
            return self._asked(request, self.question, longest)
        tokens = self._encoded(
            self._bounded((text,), f"pair {index}", longest, request.truncation, request.max_pieces)
            for index, pair in enumerate(request.pairs)
            for text in pair
        )
        return [
            self._pair(
                next(tokens),
                next(tokens),
                f"pair {index}",
                longest,
                request.truncation,
                request.max_pieces,
                request.max_document_tokens,
            )
            for index in range(len(request.pairs))
        ]

    def _pair(
        self,
        first: Sequence[int],
        second: Sequence[int],
        label: str,
        longest: int,
        truncation: Truncation,
        max_pieces: int,
        most: int | None = None,
    ) -> list[PooledText]:
        """A pair, or its pieces; `most`: tokens of a document, or of each of its pieces."""
        frame = self.tokenizer.pair_frame
        room = max(longest - frame.num_special, 0)
        second = second[:most] if max_pieces == 1 else second
        pieces = [second]
        if most is not None and max_pieces > 1 and len(second) > most and 2 * len(first) <= room:
            pieces = _pieces(second, min(room - len(first), most), max_pieces)
        elif len(first) + len(second) > room:
            self._refuse(len(first) + len(second) + frame.num_special, longest, label, truncation)
            query = first[: longest // 2]  # as OVMS has it: a longer one leaves a document no room that is worth it
            if max_pieces > 1 and len(query) < room:
                first, pieces = query, _pieces(second, min(room - len(query), most or room), max_pieces)
            else:
                first, second = cut_pair(first, second, room, _side(truncation))
                pieces = [second]
        pairs = (frame.pair(first, piece) for piece in pieces)
        return [PooledText(pair.token_ids, pair.second_from) for pair in pairs]

    def _asked(self, request: ScoreRequest, question: PairQuestion, longest: int) -> list[list[PooledText]]:
        before, behind = self.tokenizer.encode_all([question.before, question.after])
        instruction = question.instruction if request.instruction is None else request.instruction
        parts = _PLACES.split(question.body)
        texts = (
            self._bounded(
                (parts[0], instruction, parts[1], query, parts[2], document, *parts[3:]),
                f"text {index}",
                longest,
                request.truncation,
                request.max_pieces,
            )
            for index, (query, document) in enumerate(request.pairs)
        )
        num_around = len(before) + len(behind)
        room = max(longest - num_around, 0)
        made = []
        for index, body in enumerate(self._encoded(texts)):
            bodies, most = None, request.max_document_tokens
            is_cut = len(body) > room and request.max_pieces > 1 and request.truncation is not Truncation.NONE
            if is_cut or (most is not None and len(body) > most):
                head = "".join((parts[0], instruction, parts[1], request.pairs[index][0], parts[2]))
                bodies = self._pieces_asked(head, body, room, request.max_pieces, most)
            if bodies is None:
                bodies = [self._fitted(body, room, index, num_around, longest, request.truncation)]
            made.append([PooledText((*before, *piece, *behind)) for piece in bodies])
        return made

    def _pieces_asked(
        self, head: str, body: Sequence[int], room: int, max_pieces: int, most: int | None
    ) -> list[Sequence[int]] | None:
        """The question with each piece of its document; None if too little room is left. `most`: tokens of a piece."""
        tokens = next(self._encoded([head]))
        count = 0
        while count < min(len(tokens), len(body)) and tokens[count] == body[count]:
            count += 1
        if 2 * count > room:
            return None
        return [(*body[:count], *piece) for piece in _pieces(body[count:], min(room - count, most or room), max_pieces)]

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

    def _bounded(
        self, parts: Sequence[str], label: str, longest: int, truncation: Truncation, max_pieces: int = 1
    ) -> str:
        """The text made of `parts`, without what surely lies behind its last token; so megabytes are not tokenised."""
        num_chars, most = sum(map(len, parts)), max(2 * longest * self.tokenizer.max_token_chars, _SHORT_CHARS)
        most *= max_pieces
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

    def _longest(self, asked: int | None) -> int:
        most = self.facts.max_tokens
        if asked is None:
            return most
        if not 1 <= asked <= most:
            raise InvalidParameter(f"max_tokens must be between 1 and {most}, got {asked}", param="max_tokens")
        return asked

    def _fitted(
        self, own: Sequence[int], room: int, index: int, num_around: int, longest: int, truncation: Truncation
    ) -> Sequence[int]:
        if len(own) <= room:
            return own
        self._refuse(len(own) + num_around, longest, f"text {index}", truncation)
        return cut(own, max(room, 0), _side(truncation))

    def _refuse(self, num_tokens: int, longest: int, label: str, truncation: Truncation) -> None:
        if truncation is Truncation.NONE:
            raise CapacityError(
                f"{label} has {num_tokens} tokens, allowed: at most {longest}",
                param="texts",
                num_prompt_tokens=num_tokens,
                max_model_len=longest,
            )


def is_pair(text: Text | tuple[str, str]) -> bool:
    return isinstance(text, tuple) and len(text) == 2 and isinstance(text[0], str)


def parts_of(text: Text | tuple[str, str]) -> tuple[str, ...]:
    """The strings that are tokenised; of token ids none."""
    parts = (text,) if isinstance(text, str) else text
    return tuple(part for part in parts if isinstance(part, str))


def _pieces(token_ids: Sequence[int], room: int, most: int) -> list[Sequence[int]]:
    return [token_ids[begin : begin + room] for begin in range(0, len(token_ids), room)][:most]


def _side(truncation: Truncation) -> Side:
    return "left" if truncation is Truncation.LEFT else "right"
