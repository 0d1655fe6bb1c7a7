"""Turns what a client asked to have embedded or scored into tokens as the model sees them; or into the reason why not.

Does: prompts, special tokens, truncation, the checks of a request. Does not: compute. Pure; on the event loop for short
texts, else on the service's threads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dragoman.errors import CapacityError, InvalidParameter
from dragoman.server.pooling.base import EmbedRequest, PoolingFacts, ScoreRequest, Text, Truncation
from dragoman.tokenizer.frames import Frame, Side, cut, cut_pair
from dragoman.tokenizer.hf_tokenizer import HfTokenizer
from dragoman.types import PooledText, id_outside

_SHORT_CHARS = 65_536  # a text that is tokenised however few tokens it may have: it may be made of blanks
_GROUP_CHARS = 262_144  # that are tokenised together, before the next texts are looked at

_PLACES = re.compile(r"\{(?:instruction|query|document)\}")


class PairQuestion(NamedTuple):
    """How a model is asked about a pair as one text; `body` has {instruction}, {query} and {document}, in that order."""

    before: str
    body: str
    after: str
    instruction: str


@dataclass(frozen=True, slots=True)
class TextPreparer:
    """Prepares the requests for one model. `lowers_case`: texts are lower-cased before."""

    tokenizer: HfTokenizer
    facts: PoolingFacts
    question: PairQuestion | None = None
    lowers_case: bool = False

    # --- embedding ----------------------------------------------------------------------------------------------------

    def embedded(self, request: EmbedRequest) -> list[PooledText]:
        """The texts of a request. Raises: InvalidParameter, CapacityError."""
        if not request.texts:
            raise InvalidParameter("texts must hold at least one text, got none", param="texts")
        self._check_dimensions(request.dimensions)
        longest = self._longest(request.max_tokens, request.truncation)
        prompt = self.prompt(request)
        tokens = self._encoded(
            self._bounded((prompt, text), f"text {index}", longest, request.truncation)
            for index, text in enumerate(request.texts)
            if isinstance(text, str)
        )
        num_prompt = (
            len(next(self._encoded([self._bounded((prompt,), "", longest, Truncation.RIGHT)]))) if prompt else 0
        )
        frame = self.tokenizer.frame if request.add_special_tokens else Frame((), (), ())
        return [
            self._embedded(text, index, tokens, frame, num_prompt, longest, request.truncation)
            for index, text in enumerate(request.texts)
        ]

    def prompt(self, request: EmbedRequest) -> str:
        """What goes before each text. Raises: InvalidParameter."""
        name, prompts = request.prompt_name, self.facts.prompts
        if request.prompt is not None:
            if name is not None:
                raise InvalidParameter("prompt must not be given beside prompt_name", param="prompt")
            return request.prompt
        if name is None:
            name = self.facts.default_prompt_name
            return "" if name is None else prompts[name]
        if name not in prompts:
            allowed = ", ".join(prompts) or "none, as this model has no prompts"
            raise InvalidParameter(f"prompt_name {name[:80]!r} is not known, allowed: {allowed}", param="prompt_name")
        return prompts[name]

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

    def _check_dimensions(self, dimensions: int | None) -> None:
        most = self.facts.dimensions
        if dimensions is not None and not 1 <= dimensions <= most:
            raise InvalidParameter(f"dimensions must be between 1 and {most}, got {dimensions}", param="dimensions")

    def _check_ids(self, token_ids: Sequence[int], index: int) -> None:
        most = self.facts.vocab_size
        if (wrong := id_outside(token_ids, most)) is not None:
            raise InvalidParameter(f"text {index} has token {wrong}, allowed: 0 to {most - 1}", param="texts")

    # --- scoring ------------------------------------------------------------------------------------------------------

    def scored(self, request: ScoreRequest) -> list[PooledText]:
        """The pairs of a request. Raises: InvalidParameter, CapacityError."""
        longest = self._longest(request.max_tokens, request.truncation)
        if request.instruction is not None and self.question is None:
            raise InvalidParameter("instruction must be left out: this model takes none", param="instruction")
        if self.question is not None:
            return self._asked(request, self.question, longest)
        tokens = self._encoded(
            self._bounded((text,), f"pair {index}", longest, request.truncation)
            for index, pair in enumerate(request.pairs)
            for text in pair
        )
        return [
            self._pair(next(tokens), next(tokens), index, longest, request.truncation)
            for index in range(len(request.pairs))
        ]

    def _pair(
        self, first: Sequence[int], second: Sequence[int], index: int, longest: int, truncation: Truncation
    ) -> PooledText:
        frame = self.tokenizer.pair_frame
        room = max(longest - frame.num_special, 0)
        if len(first) + len(second) > room:
            self._refuse(len(first) + len(second) + frame.num_special, longest, f"pair {index}", truncation)
            first, second = cut_pair(first, second, room, _side(truncation))
        pair = frame.pair(first, second)
        return PooledText(pair.token_ids, pair.second_from)

    def _asked(self, request: ScoreRequest, question: PairQuestion, longest: int) -> list[PooledText]:
        before, behind = self.tokenizer.encode_all([question.before, question.after])
        instruction = question.instruction if request.instruction is None else request.instruction
        parts = _PLACES.split(question.body)
        texts = (
            self._bounded(
                (parts[0], instruction, parts[1], query, parts[2], document, *parts[3:]),
                f"text {index}",
                longest,
                request.truncation,
            )
            for index, (query, document) in enumerate(request.pairs)
        )
        num_around = len(before) + len(behind)
        return [
            PooledText(
                (
                    *before,
                    *self._fitted(body, max(longest - num_around, 0), index, num_around, longest, request.truncation),
                    *behind,
                )
            )
            for index, body in enumerate(self._encoded(texts))
        ]

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
        """The same; a query that is there for each document is tokenised once."""
        different = dict.fromkeys(texts)
        encoded = self.tokenizer.encode_all([text.lower() if self.lowers_case else text for text in different])
        found = dict(zip(different, encoded, strict=True))
        return (found[text] for text in texts)

    def _bounded(self, parts: Sequence[str], label: str, longest: int, truncation: Truncation) -> str:
        """The text made of `parts`, without what surely lies behind its last token; so megabytes are not tokenised in vain.

        Raises: CapacityError if it may not be truncated.
        """
        num_chars, most = sum(map(len, parts)), max(2 * longest * self.tokenizer.max_token_chars, _SHORT_CHARS)
        if num_chars <= most:
            return "".join(parts)
        if truncation is Truncation.NONE:
            raise CapacityError(
                f"{label} has {num_chars} characters, which are more than {longest} tokens: allowed are at most {longest}",
                param="texts",
                num_prompt_tokens=max(num_chars // self.tokenizer.max_token_chars, longest + 1),
                max_model_len=longest,
            )
        kept: list[str] = []
        for part in parts if truncation is Truncation.RIGHT else reversed(parts):
            kept.append(part[:most] if truncation is Truncation.RIGHT else part[max(len(part) - most, 0) :])
            most -= len(kept[-1])
        return "".join(kept if truncation is Truncation.RIGHT else reversed(kept))

    def _longest(self, asked: int | None, truncation: Truncation) -> int:
        """Tokens that a text may have. Raises: InvalidParameter."""
        most = self.facts.max_tokens
        if asked is None:
            return most
        if not 1 <= asked <= most:
            raise InvalidParameter(f"max_tokens must be between 1 and {most}, got {asked}", param="max_tokens")
        return asked

    def _fitted(
        self, own: Sequence[int], room: int, index: int, num_around: int, longest: int, truncation: Truncation
    ) -> Sequence[int]:
        """As much of a text as there is room for. Raises: CapacityError if it may not be truncated."""
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


def _side(truncation: Truncation) -> Side:
    return "left" if truncation is Truncation.LEFT else "right"
