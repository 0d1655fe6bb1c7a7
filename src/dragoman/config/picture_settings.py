"""The options about pictures in requests, a part of the table in `options`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from dragoman.config.kinds import FilePath, Hosts, ImageLimit, Integer, JsonObject, Number
from dragoman.config.option import Alias, option


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
