"""The tokenizer as an operator's input formatter gets it: the calls of Hugging Face tokenizers that formatters make.

Without padding, truncation and tensors. Every hook thread may use it at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dragoman.tokenizer.base import Tokenizer
from dragoman.types import ChatPrompt


class HookTokenizer:
    """`render` None = the model has no chat template. `special_tokens`: their texts by name, `eos_token` and the like."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        render: Callable[[ChatPrompt], str] | None = None,
        special_tokens: Mapping[str, str] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._render = render
        self.vocab_size = tokenizer.vocab_size
        self.bos_token_id = tokenizer.bos_token_id
        self.eos_token_id = tokenizer.eos_token_id
        texts = special_tokens or {}
        self.bos_token, self.eos_token, self.pad_token = map(texts.get, ("bos_token", "eos_token", "pad_token"))

    def __len__(self) -> int:
        return self.vocab_size

    def __call__(self, text: str | Sequence[str], add_special_tokens: bool = True) -> dict[str, Any]:
        if isinstance(text, str):
            ids = self.encode(text, add_special_tokens)
            return {"input_ids": ids, "attention_mask": [1] * len(ids)}
        rows = [self.encode(one, add_special_tokens) for one in text]
        return {"input_ids": rows, "attention_mask": [[1] * len(row) for row in rows]}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: int | Iterable[int], skip_special_tokens: bool = False) -> str:
        """The text of token ids; special tokens are shown unless asked otherwise, as Hugging Face's tokenizers do."""
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def batch_decode(self, sequences: Iterable[Iterable[int]], skip_special_tokens: bool = False) -> list[str]:
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        **template_kwargs: Any,
    ) -> str | list[int]:
        """The conversation as the model reads it, as token ids or as text. Raises: ValueError without a chat template."""
        if self._render is None:
            raise ValueError("the model has no chat template")
        text = self._render(
            ChatPrompt(
                messages=tuple(conversation),
                tools=tuple(tools or ()),
                continue_final_message=continue_final_message,
                template_kwargs={**template_kwargs, "add_generation_prompt": add_generation_prompt},
            )
        )
        return self.encode(text, add_special_tokens=False) if tokenize else text
