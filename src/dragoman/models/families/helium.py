"""Helium: Llama whose rotary pairs lie side by side."""

from __future__ import annotations

from dragoman.models.config import Config
from dragoman.models.families.llama import Llama, head_size
from dragoman.models.rotary import RotaryReading, read_rotary


class Helium(Llama):
    """Helium 1 2B."""

    architectures = ("HeliumForCausalLM",)
    epsilon = ("rms_norm_eps", 1e-8)

    def read_rotary(self, config: Config) -> RotaryReading:
        """Of pairs side by side."""
        return read_rotary(config, head_size(config), is_interleaved=True)
