"""Reads from config.json which of a decoder's layers see only a window of the tokens before them."""

from __future__ import annotations

from collections.abc import Callable

from dragoman.models.config import Config

_KINDS = ("full_attention", "sliding_attention")


def read_slides(config: Config, is_sliding: Callable[[int], bool]) -> tuple[bool, ...]:
    """For each layer: True if it sees only a window. `is_sliding`: the default by index. Raises: ModelError."""
    num_layers = config.count("num_hidden_layers")
    kinds = config.choices("layer_types", _KINDS, num_layers)
    config.skip("sliding_window", "sliding_window_pattern", "_sliding_window_pattern")
    return tuple(kinds[index] == _KINDS[1] if kinds else is_sliding(index) for index in range(num_layers))


def no_slides(config: Config) -> tuple[bool, ...]:
    """Raises: ModelError if layer_types has windows though none is switched on."""
    slides = read_slides(config, lambda _index: False)
    if any(slides):
        raise config.error("layer_types", f"{_KINDS[0]} only, as no window is switched on")
    return slides


def read_window(config: Config) -> int:
    window = config.count("sliding_window")
    return window if window < config.count("max_position_embeddings") else 0


def all_but_every(length: int) -> Callable[[int], bool]:
    return lambda index: (index + 1) % length != 0
