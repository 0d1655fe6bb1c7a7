"""Lets the models of one process share the processor's cores.

Does: name the property that makes a model a good neighbour. Does not: start threads. Used by the loader.

By default the CPU plugin ties threads to cores, every model's first thread to the same one. A model alone decodes up to a
twentieth faster that way. Two models that compute at once crowd one core. Measured on two cores, steps per second in parts
of what the model does alone (8 sequences that decode; prompts of 256 tokens):

    │                                 tied           not tied       taking turns, a step each
    │ decoding beside prompts         0.32 + 0.68    0.50 + 0.56    0.12 + 0.95
    │ decoding beside decoding        0.45 + 0.54    0.57 + 0.61    0.50 + 0.49
    │ the same beside a small model   0.44 + 0.55    0.55 + 0.82    0.80 + 0.08

A tower that embeds a picture beside steps is such a neighbour: four streams waited 113 ms for a token while pictures came,
and 43 once neither was tied. Turns are fair by steps and not by time: streams of one model wait for whole prompts of the
other.
"""

from __future__ import annotations

from typing import Any

SHARED: dict[str, Any] = {"ENABLE_CPU_PINNING": False}
"""For compiling or mapping a graph that computes beside others."""
