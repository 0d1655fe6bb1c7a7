"""Reads the rule by which a checkpoint rotates queries and keys: its base, its scaling, how much of a head it covers.

Sources: the checkpoints' release notes; linear, arXiv:2306.15595; dynamic NTK, its author's posts, followed by
transformers; yarn, arXiv:2309.00071; longrope, arXiv:2402.13753; llama3, the Llama 3.1 release.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from dragoman.models.config import Config, ModelError, shown
from dragoman.models.facts import RotaryRule

MAX_SIZE = 4096  # a head above it is a mistake
_LARGEST = 3e38  # the largest that f32 can hold

Axes = Literal["sections", "turns"]
"""The position that rotates a pair: sections of pairs after each other, or the three positions taking turns."""

_Frequencies = list[float]


@dataclass(frozen=True, slots=True)
class _Scaled:
    """A rule's numbers. `boundary`: the context that it is exact for, None = any; `long`: frequencies up to `longest`."""

    frequencies: _Frequencies
    magnitude: float = 1.0
    boundary: int | None = None
    long: _Frequencies | None = None
    longest: int | None = None


@dataclass(frozen=True, slots=True)
class RotaryReading:
    """The rule in config.json. `max_position`: the longest context for which it can be followed exactly."""

    rule: RotaryRule
    max_position: int
    long_context_from: int | None = None


def read_rotary(
    config: Config,
    size: int,
    *,
    is_interleaved: bool = False,
    part: float | None = None,
    base_key: str = "rope_theta",
    scaling: Config | None = None,
    axes: Axes | None = None,
) -> RotaryReading:
    """The rule for heads of this size. `scaling`: where it is described, None = where checkpoints have it.

    `part`: the rotated part of a head, if the checkpoint does not say it; None = the family rotates all of it.
    `axes`: how the family's tokens have three positions, None = as the checkpoint says.
    Raises: ModelError naming the key that is missing or not supported.
    """
    max_position = config.count("max_position_embeddings")
    described = scaling if scaling is not None else rotary_description(config)
    kind = described.value("rope_type", described.value("type", "default"))
    if part is None:
        if kind != "proportional":
            described.expect(partial_rotary_factor=1.0)
    else:
        part = described.positive("partial_rotary_factor", config.positive("partial_rotary_factor", part))
        if part > 1:
            raise ModelError(f"config.json partial_rotary_factor is {part}, allowed: a number above 0, at most 1")
        size = int(size * part)
    if size % 2 or not 2 <= size <= MAX_SIZE:
        raise ModelError(
            f"{size} dimensions of a head are turned by their position, which must be an even number up to {MAX_SIZE}"
        )
    theta = described.positive("rope_theta", config.positive(base_key, 10_000.0))
    if not isinstance(kind, str) or kind not in _RULES:
        raise ModelError(f"config.json rope_scaling type {shown(kind)} is not supported, allowed: {', '.join(_RULES)}")
    scaled = _scaled(kind, described, theta, size, config)
    axis_of_pair = _axes(described, size // 2, axes)
    described.skip("finetuned")  # about the making of the weights
    described.refuse_unread()
    rule = RotaryRule(
        tuple(scaled.frequencies),
        scaled.magnitude,
        is_interleaved,
        None if scaled.long is None else tuple(scaled.long),
        axis_of_pair,
    )
    if scaled.long is not None:
        return RotaryReading(rule, scaled.longest or max_position, scaled.boundary)
    return RotaryReading(rule, max_position)


def read_two_rotaries(
    config: Config, size: int, sliding_base_key: str, full_size: int | None = None
) -> tuple[RotaryReading, RotaryReading]:
    """The rules of layers that see everything, with heads of `full_size`, and of those with a window.

    Raises: ModelError.
    """
    described = rotary_description(config)
    full, sliding = described.part("full_attention"), described.part("sliding_attention")
    if full is None or sliding is None:  # transformers wrote it so before its version 5
        sliding = Config({})
        return read_rotary(config, size), read_rotary(config, size, base_key=sliding_base_key, scaling=sliding)
    described.refuse_unread()
    return read_rotary(config, full_size or size, scaling=full), read_rotary(config, size, scaling=sliding)


def _axes(described: Config, num_pairs: int, kind: Axes | None) -> tuple[int, ...]:
    takes_turns = described.flag("mrope_interleaved", kind == "turns")
    if kind is not None and takes_turns != (kind == "turns"):
        raise described.error("mrope_interleaved", "false" if takes_turns else "true")
    if kind is None and "mrope_section" not in described:
        return ()
    sections = [int(number) for number in described.numbers("mrope_section", 3, least=0)]
    if takes_turns:
        return tuple(pair % 3 if pair < 3 * sections[pair % 3] else 0 for pair in range(num_pairs))
    axes = tuple(axis for axis, length in enumerate(sections) for _ in range(length))
    if len(axes) != num_pairs:
        raise described.error("mrope_section", f"three numbers whose sum is {num_pairs}")
    return axes


def rotary_description(config: Config) -> Config:
    for key in ("rope_parameters", "rope_scaling"):
        part = config.part(key)
        if part is not None:
            return part
    return Config({})


def _scaled(kind: str, described: Config, theta: float, size: int, config: Config) -> _Scaled:
    try:
        scaled = _RULES[kind](described, [theta ** (-2.0 * i / size) for i in range(size // 2)], theta, config)
    except ModelError:
        raise
    except (ArithmeticError, ValueError) as error:
        raise ModelError(f"config.json rope_scaling of type {kind!r} cannot be computed: {error}") from error
    if not all(abs(value) <= _LARGEST for value in (*scaled.frequencies, *(scaled.long or ()), scaled.magnitude)):
        raise ModelError(f"config.json rope_scaling of type {kind!r} gives frequencies that are not finite")
    return scaled


def _default(_described: Config, plain: _Frequencies, _theta: float, _config: Config) -> _Scaled:
    return _Scaled(plain)


def _linear(described: Config, plain: _Frequencies, _theta: float, _config: Config) -> _Scaled:
    factor = described.positive("factor")
    return _Scaled([frequency / factor for frequency in plain])


def _proportional(described: Config, plain: _Frequencies, _theta: float, _config: Config) -> _Scaled:
    """The first pairs of a head rotate as if all did; the others stay."""
    part, factor = described.positive("partial_rotary_factor", 1.0), described.positive("factor", 1.0)
    if part > 1:
        raise described.error("partial_rotary_factor", "a number above 0, at most 1")
    num_turned = int(part * len(plain))
    return _Scaled([frequency / factor * (pair < num_turned) for pair, frequency in enumerate(plain)])


def _dynamic(described: Config, plain: _Frequencies, theta: float, config: Config) -> _Scaled:
    """Plain up to the original context. Sequences beyond it have the frequencies of the longest one, `factor` times that.

    A sequence that fits the original context follows transformers; any other vLLM, so that cached keys stay right.
    """
    factor, size = described.positive("factor"), 2 * len(plain)
    original = described.count("original_max_position_embeddings", config.count("max_position_embeddings"))
    longest = int(original * factor)
    if longest <= original:
        return _Scaled(plain)
    if longest >= 2**31:
        raise described.error("factor", f"a number with which {original} tokens become fewer than 2^31")
    stretched = theta * (factor * longest / original - (factor - 1)) ** (size / (size - 2))
    long = [stretched ** (-2.0 * i / size) for i in range(len(plain))]
    return _Scaled(plain, boundary=original, long=long, longest=longest)


def _llama3(described: Config, plain: _Frequencies, _theta: float, config: Config) -> _Scaled:
    factor = described.positive("factor")
    low, high = described.positive("low_freq_factor"), described.positive("high_freq_factor")
    original = described.count("original_max_position_embeddings", config.count("max_position_embeddings"))

    def scaled(frequency: float) -> float:
        wavelength = 2.0 * math.pi / frequency
        # [0, original/high) kept · [original/high, original/low] blended · (original/low, inf) divided by factor
        if wavelength < original / high:
            return frequency
        if wavelength > original / low:
            return frequency / factor
        smooth = (original / wavelength - low) / (high - low)
        return (1.0 - smooth) * frequency / factor + smooth * frequency

    return _Scaled([scaled(frequency) for frequency in plain])


def _factors(described: Config, plain: _Frequencies, _theta: float, _config: Config) -> _Scaled:
    factors = described.numbers("factors", len(plain), least=1e-30)
    return _Scaled([frequency / factor for frequency, factor in zip(plain, factors, strict=True)])


def _yarn(described: Config, plain: _Frequencies, theta: float, config: Config) -> _Scaled:
    max_position = config.count("max_position_embeddings")
    original = described.count("original_max_position_embeddings", max_position)
    factor = described.positive("factor", max_position / original)
    fast, slow = described.positive("beta_fast", 32.0), described.positive("beta_slow", 1.0)
    size = 2 * len(plain)

    def dimension(rotations: float) -> float:
        return size * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(fast), dimension(slow)
    if described.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    span = max(high - low, 0.001)
    kept = [1.0 - min(max((i - low) / span, 0.0), 1.0) for i in range(size // 2)]
    frequencies = [
        frequency / factor * (1 - part) + frequency * part for frequency, part in zip(plain, kept, strict=True)
    ]
    return _Scaled(frequencies, _yarn_magnitude(described, factor))


def _yarn_magnitude(described: Config, factor: float) -> float:
    mscale, all_dimensions = described.number("mscale", 0.0), described.number("mscale_all_dim", 0.0)
    if "attention_factor" in described:
        return described.positive("attention_factor")
    if mscale and all_dimensions:
        return yarn_growth(factor, mscale) / yarn_growth(factor, all_dimensions)
    return yarn_growth(factor, 1.0)


def yarn_growth(factor: float, weight: float) -> float:
    """The growth of queries and keys, each, in a context that is `factor` times the original one."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _longrope(described: Config, plain: _Frequencies, _theta: float, config: Config) -> _Scaled:
    max_position = config.count("max_position_embeddings")
    nested = described.count("original_max_position_embeddings", max_position)
    original = config.count("original_max_position_embeddings", nested)
    short, long = (described.numbers(f"{name}_factor", len(plain), least=1e-30) for name in ("short", "long"))
    factor = max_position / original
    if "factor" in described and "original_max_position_embeddings" not in config:
        factor = described.positive("factor")
    described.skip("factor")
    grown = 1.0 if factor <= 1.0 else math.sqrt(1 + math.log(factor) / math.log(original))
    magnitude = described.positive("attention_factor", grown)
    divided = [[frequency / by for frequency, by in zip(plain, factors, strict=True)] for factors in (short, long)]
    return _Scaled(divided[0], magnitude, original, divided[1])


_RULES: dict[str, Callable[[Config, _Frequencies, float, Config], _Scaled]] = {
    "default": _default,
    "linear": _linear,
    "proportional": _proportional,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "factors": _factors,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,  # Phi-3's first name for it
    "mrope": _default,  # see "mrope_section"
}
