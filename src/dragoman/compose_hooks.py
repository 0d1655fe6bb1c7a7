"""Connects an operator's model.py with the model it lies beside: the part of the composition root that is about hooks.

Does: load the file as the options say, initialise its handler, put formatters and handler into the model's dialects.
Does not: call formatters, or build anything else of a model. Called by `compose`, at start-up: loading on a worker thread,
the rest on the event loop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

from dragoman.config.option import show
from dragoman.config.options import OPTIONS, OUTPUT_FORMATTERS
from dragoman.config.resolve import Config, ConfigError
from dragoman.errors import HookError
from dragoman.hooks import (
    HandlerLoop,
    HookLoadError,
    HookPool,
    Hooks,
    HookTokenizer,
    StartRefused,
    load_hooks,
    own_traceback,
)
from dragoman.models.config import read_json
from dragoman.server.dialects.lmi import LmiDialect, LmiOptions
from dragoman.server.operator.formatters import HookOptions, with_hooks
from dragoman.server.operator.handler_model import HandlerModel
from dragoman.server.operator.handlers import HandlerRuntime, with_handler
from dragoman.server.registry import DialectSet, GenerationService
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.tokenizer.hf_tokenizer import HfTokenizer


@dataclass(frozen=True, slots=True)
class OperatorCode:
    """What an operator's file brought: `hooks` None = there is no file; `runtime` None = it has no handler."""

    hooks: Hooks | None = None
    runtime: HandlerRuntime | None = None


def load_operator_file(config: Config) -> Hooks | None:
    """The operator's functions. Raises: ConfigError if the file is not there, does not load or does not fit."""
    clients = config.clients
    named = None if clients.output_formatter in OUTPUT_FORMATTERS else clients.output_formatter
    if not clients.hooks:
        if named is not None:
            raise ConfigError(
                [f"{config.cite('output_formatter')}: must not name a function while hooks are switched off"]
            )
        return None
    try:
        return load_hooks(clients.entry_point, (config.directory, config.model_dir), named, clients.handler)
    except HookLoadError as error:
        raise ConfigError([str(error)]) from error


async def start_handler(config: Config, hooks: Hooks | None) -> HandlerRuntime | None:
    """The operator's handler, initialised; None if there is none. Raises: ConfigError if its initialisation fails."""
    if hooks is None or hooks.handler is None:
        return None
    pool = HookPool(None, subject="handler", num_threads=config.clients.handler_threads)
    runtime = HandlerRuntime(
        hooks.handler, handler_properties(config), config.server.predict_timeout, pool, HandlerLoop()
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


def handler_properties(config: Config) -> dict[str, str]:
    """The options by LMI's names, as texts, with what LMI adds; secrets and options without a value are left out.

    Options that only the operator's code knows are there as they were given.
    """
    named = {
        option.key.removeprefix("option."): show(value)
        for option in OPTIONS
        if (value := config.value(option)) not in (None, (), "") and not option.row.is_secret
    }
    del named["batch_size"]  # of a request, it would say that this is a batch
    where = {"model_dir": str(config.directory.resolve()), "model_id": str(config.model_dir.resolve())}
    return {**config.own_options, **named, **where, "device_id": "-1", "tensor_parallel_degree": "1"}


def hooked_dialects(
    config: Config,
    code: OperatorCode,
    dialects: DialectSet,
    own: LmiOptions,
    service: GenerationService,
    tokenizer: HfTokenizer,
    template: ChatTemplate | None,
) -> DialectSet:
    """The dialects with the operator's formatters and handler. `own`: what the LMI dialect is told without them."""
    if code.hooks is None:
        return dialects
    # an operator's formatter takes the place of option.output_formatter, which would stream every answer
    lmi = LmiDialect(own if code.hooks.output_formatter is None else replace(own, output_formatter=None))
    pool = HookPool(config.clients.hook_timeout_s)
    made = with_hooks(dialects, lmi, code.hooks, _hook_options(config, tokenizer, template), pool.run)
    if code.runtime is None:
        return made
    plain, dynamic = LmiDialect(own), LmiDialect(replace(own, rolling_batch="disable"))
    access = replace(code.runtime, make_access=lambda http: HandlerModel(plain, dynamic, service, http.request_id))
    return with_handler(made, access)


def _hook_options(config: Config, tokenizer: HfTokenizer, template: ChatTemplate | None) -> HookOptions:
    """What input formatters are called with, by LMI's names; what does not exist here is empty or None."""
    clients = config.clients
    values = {option.name: config.value(option) for option in OPTIONS if not option.row.is_secret}
    context = {
        "configs": SimpleNamespace(**{**config.own_options, **values}, model_id_or_path=str(config.model_dir)),
        "tokenizer": HookTokenizer(
            tokenizer, None if template is None else template.render, tokenizer.facts.special_tokens
        ),
        "adapter_registry": {},
        "model_config": SimpleNamespace(**read_json(config.model_dir / "config.json")),
        "peft_config": None,
        "rolling_batch": None,
        "image_placeholder_token": None,
        "is_mistral_tokenizer": False,
        "is_rolling_batch": clients.rolling_batch != "disable",
    }
    return HookOptions(context, has_index=clients.lmi_version == "0.32", tgi_compat=clients.tgi_compat)
