"""Helium: Llama whose rotary pairs lie side by side."""

from __future__ import annotations

from dragoman.models.families.llama import Llama


class Helium(Llama):
    """Helium 1 2B."""

    architectures = ("HeliumForCausalLM",)
    epsilon = ("rms_norm_eps", 1e-8)
    has_interleaved_pairs = True
