"""Lets the models of one process share the processor's cores.

Does: name the property that makes a model a good neighbour. Does not: start threads or make anybody wait; the runtime and
the operating system do the sharing. Used by the loader.

The CPU plugin computes a model's steps on a thread of its own and on a pool of workers. All models of the process share the
pool, which has a thread less than there are cores. Two models that compute at once are threads to the operating system: it
gives them equal time, interrupts a long step for a short one, and leaves no core idle while one of them samples.

By default the plugin ties threads to cores, every model's first thread to the same core. For a model alone that is right: it
decodes up to a twentieth faster. Two such models crowd one core, and the one with the worker gets twice as much. Measured on
two cores, steps per second in parts of what the model does alone (8 sequences that decode; prompts of 256 tokens):

    │                                 tied           not tied       taking turns, a step each
    │ decoding beside prompts         0.32 + 0.68    0.50 + 0.56    0.12 + 0.95
    │ decoding beside decoding        0.45 + 0.54    0.57 + 0.61    0.50 + 0.49
    │ the same beside a small model   0.44 + 0.55    0.55 + 0.82    0.80 + 0.08

A tower that embeds a picture beside steps is such a neighbour: four streams waited 113 ms for a token (at most 301) while
pictures came, and 43 (159) once neither was tied; alone 24 and 22. With one thread for the tower streams gain nothing, and
the picture takes half as long again.

Turns are fair by steps and not by time, so that streams of one model wait for whole prompts of the other. Letting the
model with less time go first needs kernels that idle until it comes back: no more work done, and longer pauses in streams.
"""

from __future__ import annotations

from typing import Any

SHARED: dict[str, Any] = {"ENABLE_CPU_PINNING": False}
"""For compiling or mapping a graph that computes beside others."""
