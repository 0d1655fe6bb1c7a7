"""Brings an operator's own file of code to a model, as LMI's containers do: its formatters, and its handler.

Called by `compose`, on a worker thread or the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dragoman.config.engine_options import OPTIONS, OUTPUT_FORMATTERS
from dragoman.config.option import show
from dragoman.config.resolve import Config, ConfigError
from dragoman.config.several import COMMAND_LINE
from dragoman.errors import HookError
from dragoman.models.config import read_config
from dragoman.server.apis.lmi.hooks.functions import StartRefused
from dragoman.server.apis.lmi.hooks.loader import HookLoadError, Hooks, is_own_entry_point, load_hooks, own_traceback
from dragoman.server.apis.lmi.hooks.threads import HandlerLoop, HookPool
from dragoman.server.apis.lmi.operator.handlers import HandlerRuntime
from dragoman.tokenizer.base import Tokenizer
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.tokenizer.hf_tokenizer import HfTokenizer
from dragoman.types import ChatPrompt


def load_operator_file(config: Config) -> Hooks | None:
    """Raises: ConfigError if the file is not there, does not load or does not fit."""
    clients = config.clients
    named = None if clients.output_formatter in OUTPUT_FORMATTERS else clients.output_formatter
    if not clients.hooks:
        if named is not None:
            raise ConfigError(
                [f"{config.cite('output_formatter')}: must not name a function while hooks are switched off"]
            )
        return None
    try:
        return load_hooks(clients.entry_point, _code_directories(config), named, clients.handler)
    except HookLoadError as error:
        raise ConfigError([str(error)]) from error


def _code_directories(config: Config) -> tuple[Path, ...]:
    """A name from the command line may also be in the current directory."""
    beside = (config.directory, config.model_dir)
    is_typed = config.origins["entry_point"].source == COMMAND_LINE and is_own_entry_point(config.clients.entry_point)
    return (*beside, Path.cwd()) if is_typed else beside


async def start_handler(config: Config, hooks: Hooks | None) -> HandlerRuntime | None:
    """The operator's handler, initialised; None if there is none. Raises: ConfigError if its initialisation fails."""
    if hooks is None or hooks.handler is None:
        return None
    pool = HookPool(None, subject="handler", num_threads=config.clients.handler_threads)
    runtime = HandlerRuntime(
        hooks.handler, _handler_properties(config), config.server.predict_timeout, pool, HandlerLoop()
    )
    try:
        await runtime.start()
    except (StartRefused, HookError) as error:
        raise ConfigError([f"{hooks.path}: {error}"]) from error
    except Exception as error:  # hook call: whatever the operator's code raises stops the start, with its own traceback
        raise ConfigError(
            [f"{hooks.path}: {hooks.handler.name}() failed to initialise:\n{own_traceback(error, hooks.path)}"]
        ) from error
    return runtime


def _handler_properties(config: Config) -> dict[str, str]:
    """The options by LMI's names, as texts, with what LMI adds; secrets and options without a value are left out."""
    named = {
        option.key.removeprefix("option."): show(value)
        for option in OPTIONS
        if (value := config.value(option)) not in (None, (), "") and not option.row.is_secret
    }
    del named["batch_size"]  # of a request, it would say that this is a batch
    where = {"model_dir": str(config.directory.resolve()), "model_id": str(config.model_dir.resolve())}
    degree = config.engine_options.get("tensor_parallel_degree", "1")
    return {**config.own_options, **named, **where, "device_id": "-1", "tensor_parallel_degree": degree}


def hook_context(config: Config, tokenizer: HfTokenizer, template: ChatTemplate | None) -> dict[str, Any]:
    """Arguments for input formatters, by LMI's names; those without a counterpart here are empty or None."""
    values = {option.name: config.value(option) for option in OPTIONS if not option.row.is_secret}
    return {
        "configs": SimpleNamespace(**{**config.own_options, **values}, model_id_or_path=str(config.model_dir)),
        "tokenizer": HookTokenizer(
            tokenizer, None if template is None else template.render, tokenizer.facts.special_tokens
        ),
        "adapter_registry": {},
        "model_config": SimpleNamespace(**read_config(config.model_dir)),
        "peft_config": None,
        "rolling_batch": None,
        "image_placeholder_token": None,
        "is_mistral_tokenizer": False,
        "is_rolling_batch": config.clients.rolling_batch != "disable",
    }


class HookTokenizer:
    """The tokenizer as an input formatter gets it: the calls of Hugging Face tokenizers that formatters make.

    Without padding, truncation and tensors. Every hook thread may use it at once. `render` None = the model has no chat
    template. `special_tokens`: their texts by name, `eos_token` and the like.
    """

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
        rows = [self.encode(line, add_special_tokens) for line in text]
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
