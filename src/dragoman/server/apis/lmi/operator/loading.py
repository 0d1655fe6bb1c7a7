"""Brings an operator's own file of code to a model, as LMI's containers do: its formatters, and its handler.

Called by `compose`, on a worker thread or the event loop.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dragoman.config.option import show
from dragoman.config.options import OPTIONS, OUTPUT_FORMATTERS
from dragoman.config.resolve import Config, ConfigError
from dragoman.config.several import COMMAND_LINE
from dragoman.errors import HookError
from dragoman.models.config import read_config
from dragoman.server.apis.lmi.hooks.handler import StartRefused
from dragoman.server.apis.lmi.hooks.handler_loop import HandlerLoop
from dragoman.server.apis.lmi.hooks.loader import HookLoadError, Hooks, is_own_entry_point, load_hooks, own_traceback
from dragoman.server.apis.lmi.hooks.pool import HookPool
from dragoman.server.apis.lmi.hooks.tokenizer import HookTokenizer
from dragoman.server.apis.lmi.operator.handlers import HandlerRuntime
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.tokenizer.hf_tokenizer import HfTokenizer


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
