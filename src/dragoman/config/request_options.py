"""The options about what requests hold or leave out: sampling, reasoning, pictures, adapters, llama.cpp's API.

A part of the table in `options`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dragoman.config.kinds import (
    FilePath,
    Hosts,
    ImageLimit,
    Integer,
    JsonObject,
    Kind,
    NamedDirectories,
    Names,
    Number,
    Switch,
    Text,
    parameter_kind,
)
from dragoman.config.option import Alias, option
from dragoman.parameters import PARAMETERS
from dragoman.types import Limits

_PREFIX = "default_"


def _default(name: str, *flags: str, kind: Kind | None = None, effect: str = "", unset: str = "likewise") -> Any:
    text = f"The same for {name}: {effect or PARAMETERS[name].effect}."
    return option(None, kind or parameter_kind(name), text, unset=unset, flags=flags, open_to="load")


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """Sampling where requests do not say it"""

    default_temperature: float | None = option(
        None,
        parameter_kind("temperature"),
        "Temperature of requests that give none, in the APIs that --generation-config names; 0 is greedy. This option "
        "and the ones below take precedence over the model's generation_config.json.",
        unset="the value of that file, or of the API's document",
        flags=("--temp", "--temperature"),
        open_to="load",
    )
    default_top_k: int | None = _default(
        "top_k", "--top-k", kind=Integer(0), effect="keep this many of the most likely tokens, 0 = all"
    )
    default_top_p: float | None = _default("top_p", "--top-p", kind=Number(0, maximum=1))
    default_min_p: float | None = _default("min_p", "--min-p")
    default_typical_p: float | None = _default("typical_p", "--typical", "--typical-p")
    default_repetition_penalty: float | None = _default("repetition_penalty", "--repeat-penalty")
    default_presence_penalty: float | None = _default("presence_penalty", "--presence-penalty")
    default_frequency_penalty: float | None = _default("frequency_penalty", "--frequency-penalty")
    default_seed: int | None = _default(
        "seed",
        "--seed",
        kind=Integer(-1, 2**64 - 1),
        effect="requests without a seed then repeat their answers; -1 = random",
        unset="random",
    )


def operator_sampling(settings: SamplingSettings) -> Mapping[str, Any]:
    """The operator's values, by the names of `SamplingParams`; `do_sample` if they turn sampling on."""
    values = {field.name.removeprefix(_PREFIX): getattr(settings, field.name) for field in fields(settings)}
    found = {name: value for name, value in values.items() if value is not None and (name, value) != ("seed", -1)}
    return {**found, "do_sample": True} if "temperature" in found else found


def option_of(name: str) -> str:
    return _PREFIX + name


_LARGEST_PATTERN = Limits().max_pattern_size
_NUM_FIELDS = 3


@dataclass(frozen=True, slots=True)
class Repetition:
    """When a text has begun to repeat itself, as vLLM's JSON; `off` = never."""

    allowed = (
        'off, or JSON as {"max_pattern_size": 512, "min_pattern_size": 128, "min_count": 4}: sizes from 1 to '
        f"{_LARGEST_PATTERN}, the first not below the second, which is 1 where it is left out, and a count of at least 2"
    )

    placeholder = "{off,JSON}"

    def parse(self, text: str) -> str:
        if text.lower() in ("off", "none", "false", "{}"):
            return "off"
        try:
            found = json.loads(text)
        except RecursionError as error:
            raise ValueError(text) from error
        if not isinstance(found, dict):
            raise ValueError(text)
        rule = {"max_pattern_size": -1, "min_pattern_size": 1, "min_count": -1, **found}
        if len(rule) > _NUM_FIELDS or not all(type(number) is int for number in rule.values()):
            raise ValueError(text)
        if rule["max_pattern_size"] == 0:
            return "off"
        if not 1 <= rule["min_pattern_size"] <= rule["max_pattern_size"] <= _LARGEST_PATTERN or rule["min_count"] < 2:
            raise ValueError(text)
        return json.dumps(rule)


@dataclass(frozen=True, slots=True)
class ReasoningSettings:
    """Reasoning"""

    reasoning_budget: int | None = option(
        None,
        Integer(-1),
        "Most reasoning tokens in conversations that set no budget themselves. When it is spent, the server ends the "
        "reasoning and the answer follows. 0: no reasoning; -1: no limit.",
        unit="tokens",
        unset="no limit",
        env=(Alias("LLAMA_ARG_THINK_BUDGET"),),
        open_to="load",
    )
    reasoning_budget_message: str | None = option(
        None,
        Text(),
        "Text appended to reasoning that the server ends.",
        unset="the text the model was trained with, if known",
        env=(Alias("LLAMA_ARG_THINK_BUDGET_MESSAGE"),),
    )
    reasoning_repetition_detection: str = option(
        '{"max_pattern_size": 512, "min_pattern_size": 128, "min_count": 4}',
        Repetition(),
        "When to end reasoning that repeats itself, as a spent budget would: its last tokens are one pattern, of a "
        "size between the two bounds, repeated min_count times. Requests may override it.",
        open_to="load",
    )


def _listed(text: str) -> str:
    """The words of a JSON array, as vLLM's configurations write lists, else the text."""
    if not text.lstrip().startswith("["):
        return text
    try:
        return ",".join(json.loads(text))
    except (TypeError, RecursionError) as error:
        raise ValueError(text) from error


@dataclass(frozen=True, slots=True)
class PictureSettings:
    """Pictures"""

    mmproj: Path | None = option(
        None,
        FilePath("FILE"),
        "GGUF file with the vision part of a GGUF model (llama.cpp's mmproj).",
        unset="a file beside the model with mmproj in its name",
        flags=("-mm",),
        env=(Alias("LLAMA_ARG_MMPROJ"),),
        open_to="model",
    )
    limit_mm_per_prompt: int | None = option(
        None,
        ImageLimit(),
        "Most images per prompt. With image=0 the vision part of the model is not loaded.",
        unset="as many as fit into the context",
        open_to="load",
    )
    mm_processor_kwargs: str | None = option(
        None,
        JsonObject(),
        "JSON that overrides keys of preprocessor_config.json; max_pixels, for example, limits time and tokens.",
        unset="no overrides",
        open_to="load",
    )
    allow_image_hosts: tuple[str, ...] = option(
        (),
        Hosts(),
        "Hosts whose images the server may fetch for clients, at public addresses only (see pictures.md).",
        unset="none: clients send images as data",
        keys=(Alias("option.allowed_media_domains", _listed, "hosts separated by commas, or a JSON array of them"),),
    )
    image_fetch_timeout_s: float = option(
        5.0,  # 5: default of VLLM_IMAGE_FETCH_TIMEOUT
        Number(0, maximum=600),
        "Time limit for fetching one image, redirects included.",
        unit="seconds",
        env=(Alias("VLLM_IMAGE_FETCH_TIMEOUT"),),
    )
    max_image_mb: int = option(20, Integer(1, 1024), "Largest image file, sent or fetched.", unit="MiB")
    max_image_pixels: int = option(
        50_000_000,  # the largest of today's telephones; 150 MB once decoded
        Integer(1, 178_956_970),  # past it Pillow refuses by itself
        "Most pixels per image; all images of one request may have four times as many. A larger JPEG is decoded at "
        "half its width and height.",
        unit="pixels",
    )


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """Adapters (LoRA)"""

    lora: tuple[str, ...] = option(
        (),
        NamedDirectories(),
        "Adapters that requests may ask for by name: directories as PEFT writes them, or GGUF files (see adapters.md).",
        unset="none",
        keys=(Alias("option.lora_modules"),),
    )
    merge_lora: bool = option(
        False,
        Switch(),
        "Merge the one adapter of option.lora into the weights while loading. It then costs nothing and cannot be "
        "switched off.",
        open_to="load",
    )
    enable_lora: bool = option(
        False,
        Switch(),
        "Reserve memory for adapters that are loaded while the server runs; they may change any linear layer. "
        "Adapters in the folder adapters beside the model are loaded at the start.",
        open_to="load",
    )
    max_loras: int = option(
        4,  # LMI's default
        Integer(1, 64),
        "Adapters that option.enable_lora reserves memory for.",
        unit="adapters",
        open_to="load",
    )
    max_lora_rank: int | None = option(
        None,
        Integer(1, 1024, auto=True),
        "Largest rank of adapters that are loaded while the server runs.",
        unset="16, or the largest rank loaded at the start",
        open_to="load",
    )
    lora_store: Path | None = option(
        None,
        FilePath("DIRECTORY", "directory"),
        "Directory that clients may load adapters from while the server runs.",
        unset="the folder adapters beside the model",
    )


@dataclass(frozen=True, slots=True)
class LlamaCppSettings:
    """llama.cpp's API"""

    slots: bool = option(
        True,
        Switch(),
        "Answer /slots, which tells how far the running sequences are; without it the path answers 501.",
        open_to="load",
    )
    tags: tuple[str, ...] = option(
        (),
        Names(),
        "Words that lists of models carry beside the model's name, for clients that look for them.",
        unset="none",
    )
