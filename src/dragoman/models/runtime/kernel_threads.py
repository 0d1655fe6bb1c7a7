"""Lets the models of one process share the processor's cores. Used by the loader.

By default the CPU plugin ties threads to cores, every model's first thread to the same one: alone a twentieth faster,
but two models that compute at once crowd one core. Decoding beside prompts, measured on two cores in parts of what a
model does alone: tied 0.32 + 0.68, not tied 0.50 + 0.56, taking turns by steps 0.12 + 0.95. A tower is such a
neighbour too.
"""

from __future__ import annotations

from typing import Any

SHARED: dict[str, Any] = {"ENABLE_CPU_PINNING": False}
"""For compiling or mapping a graph that computes beside others."""
