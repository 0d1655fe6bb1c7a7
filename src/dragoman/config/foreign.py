"""Known options of other servers without effect here, from `foreign_options.toml`. Each is reported once, with why."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class ForeignOption:
    """A known name without an effect. `harmless` values request the present behaviour and are not reported."""

    key: str
    reason: str
    harmless: tuple[str, ...] = ()
    is_secret: bool = False  # the value is never shown

    def is_harmless(self, text: str) -> bool:
        return text.lower() in self.harmless


OPTIONS_OF_LMI = (
    "model_id", "revision", "name", "dtype", "max_model_len", "chat_template", "tool_call_parser", "reasoning_parser",
    "task", "normalize", "engine", "max_batch_tokens", "max_num_seqs", "prefix_cache", "draft_model", "num_assistant_tokens",
    "enable_lora", "max_loras", "max_lora_rank", "limit_mm_per_prompt", "max_request_size", "job_queue_size",
    "predict_timeout", "load_models", "model_store", "cors_allowed_origin", "cors_allowed_methods", "cors_allowed_headers",
    "rolling_batch", "batch_size", "output_formatter", "enable_streaming", "tgi_compat", "entry_point", "handler",
    "max_logprobs",
)  # fmt: skip
"""Options of ours that LMI has as well: a variable of one is a sign of a server configured as LMI's containers are."""

OTHER_TASK = ForeignOption("option.task", "this server generates text, embeds and reranks")
"""Any other word for what a model is for: there option.task is no option of ours, and a model.py may read it."""

ENGINES_OF_DJL = frozenset(
    ("python", "mpi", "deepspeed", "fastertransformer", "pytorch", "onnxruntime", "rust", "tensorflow", "tensorrt")
)
ENGINE_OF_DJL = ForeignOption("engine", "the engine is built in", ("python", "mpi"))
"""LMI's `engine`, which its containers also take as OPTION_ENGINE: one of these words, in any case."""

MANAGEMENT_ADDRESS = "management_address"  # not reported if it is the server's address

_FILE: Mapping[str, Any] = tomllib.loads(Path(__file__).with_name("foreign_options.toml").read_text(encoding="utf-8"))

REASONS: Mapping[str, str] = _FILE["reasons"]

OFF: tuple[str, ...] = tuple(_FILE["values"]["off"])

REFUSED_OPTIONS: Mapping[str, str] = _FILE["refused"]
"""Options of others that would change answers, with what is said where they are refused."""

FOREIGN_VARIABLES: Mapping[str, str] = _FILE["variables"]

FOREIGN_PREFIXES: Mapping[str, str] = _FILE["prefixes"]
"""Beginnings of environment variables that other servers read whatever follows, and what is said about such a variable."""


def _options_of(section: Mapping[str, Any]) -> Iterator[tuple[ForeignOption, bool]]:
    """The options of a section, and whether vLLM has each."""
    for row in section["rows"]:
        reason = REASONS.get(row["reason"], row["reason"])
        harmless = row.get("harmless", ())
        values = tuple(_FILE["values"][harmless] if isinstance(harmless, str) else harmless)
        for name in row["names"].split():
            option = ForeignOption(section.get("prefix", "") + name, reason, values, row.get("secret", False))
            yield option, row.get("vllm", False)


_ALL = [found for section in _FILE["sections"].values() for found in _options_of(section)]

FOREIGN_OPTIONS: tuple[ForeignOption, ...] = tuple(option for option, _ in _ALL)

OF_ENGINES: Mapping[str, frozenset[str]] = {"vllm": frozenset(option.key for option, is_taken in _ALL if is_taken)}
"""Engine -> keys that act where it runs: it takes them as arguments of its own, and checks them."""


def foreign_in(file: str) -> Mapping[str, ForeignOption]:
    """The options of another server's file without effect here, by name. `file`: its name in `foreign_options.toml`."""
    return {option.key: option for option, _ in _options_of(_FILE["files"][file])}
