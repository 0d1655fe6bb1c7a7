"""The objects that formatters take and give: requests, generated sequences, tokens.

A request's objects are used by one hook thread at a time. Operators subclass them, so they are plain dataclasses with
LMI's names and defaults.
Source: the LMI output formatter page, v0.31; `get_next_token` has four values since 0.32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["RequestInput", "RequestOutput", "Sequence", "TextGenerationOutput", "TextInput", "Token"]

Parameters = dict[str, Any]


class Token:
    """One generated or prompt token. `log_prob` is None for the first prompt token and for a placeholder (id -1)."""

    def __init__(
        self,
        id: int,
        text: str,
        log_prob: float | None = None,
        special_token: bool | None = None,
        error_msg: str | None = None,
    ) -> None:
        self.id = id
        self.text = text
        self.log_prob = log_prob
        self.special_token = special_token
        self.request_id: int | None = None
        self.error_msg = error_msg

    def as_dict(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"id": self.id, "text": self.text, "log_prob": self.log_prob}
        if self.special_token:
            shown["special_token"] = self.special_token
        if self.error_msg:
            shown["error_msg"] = self.error_msg
        return shown

    def as_tgi_dict(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"id": self.id, "text": self.text, "logprob": self.log_prob}
        if self.special_token:
            shown["special"] = self.special_token
        return shown


@dataclass
class Sequence:
    """`top_tokens` has one list per token when the client asked for the most likely ones. `has_index`: as in LMI 0.32."""

    tokens: list[Token] = field(default_factory=list)
    top_tokens: list[list[Token]] = field(default_factory=list)
    cumulative_log_prob: float = 0.0
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    has_index: bool = field(default=False, repr=False)
    _is_complete: bool = field(default=False, init=False, repr=False)
    _position: int = field(default=0, init=False, repr=False)
    _top_position: int = field(default=0, init=False, repr=False)

    @property
    def position(self) -> int:
        return self._position

    def set_next_token(self, token: Token, is_last_token: bool = False) -> None:
        self.tokens.append(token)
        self._is_complete = is_last_token

    def has_next_token(self) -> bool:
        return self._position < len(self.tokens)

    def get_next_token(self) -> tuple[Any, ...]:
        """The next token with (position,) is_first, is_last; None in the token's place if there is none yet."""
        if not self.has_next_token():
            return (None, self._position, False, False) if self.has_index else (None, False, False)
        index = self._position
        self._position += 1
        is_last = self._is_complete and index == len(self.tokens) - 1
        if self.has_index:
            return self.tokens[index], index, index == 0, is_last
        return self.tokens[index], index == 0, is_last

    def get_last_token(self) -> Token | None:
        """The newest token, None before the first; the walk does not move."""
        return self.tokens[-1] if self.tokens else None

    def set_next_top_tokens(self, top_tokens: list[Token]) -> None:
        self.top_tokens.append(top_tokens)

    def has_next_top_tokens(self) -> bool:
        return self._top_position < len(self.top_tokens)

    def get_next_top_tokens(self) -> list[Token] | None:
        if not self.has_next_top_tokens():
            return None
        self._top_position += 1
        return self.top_tokens[self._top_position - 1]


@dataclass
class RequestInput:
    """A request as an input formatter describes it.

    `parameters` are shown to the output formatter as they are here; `server_parameters` is the copy that the server
    reads. `output_formatter`: a function, the name of one in model.py, or json, jsonlines or sse; None = the operator's.
    """

    request_id: int | None = None
    client_request_id: str | None = None
    output_formatter: Callable[..., Any] | str | None = None
    parameters: Parameters = field(default_factory=dict)
    server_parameters: Parameters = field(default_factory=dict)
    tgi_compat: bool = False


@dataclass
class TextInput(RequestInput):
    """`input_text` is a prompt or a list of prompts."""

    input_text: str | list[str] | None = None
    adapters: Any = None
    tokenizer: Any = None


@dataclass
class RequestOutput:
    """The state of a request. `finished`: nothing more will be generated."""

    request_id: int | None
    input: Any  # the RequestInput, or the operator's subclass of it
    finished: bool = False


@dataclass
class TextGenerationOutput(RequestOutput):
    """The generated sequences by index. `other_sequences_indices`: all but the best, in the engine's order."""

    sequences: dict[int, Sequence] = field(default_factory=dict)
    best_sequence_index: int = 0
    prompt_tokens_details: list[Token] = field(default_factory=list)
    other_sequences_indices: list[int] = field(default_factory=list)

    def get_tokens_as_dict(self, sequence_index: int = 0) -> list[dict[str, Any]]:
        return self._shown(self.sequences[sequence_index].tokens)

    def get_prompt_tokens_as_dict(self) -> list[dict[str, Any]]:
        return self._shown(self.prompt_tokens_details)

    def get_top_tokens_as_dict(self, sequence_index: int = 0) -> list[list[dict[str, Any]]]:
        return [self._shown(tokens) for tokens in self.sequences[sequence_index].top_tokens]

    def _shown(self, tokens: list[Token]) -> list[dict[str, Any]]:
        return [token.as_tgi_dict() if self.input.tgi_compat else token.as_dict() for token in tokens]
