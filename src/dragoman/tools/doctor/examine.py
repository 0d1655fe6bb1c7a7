"""Examines the machine, in an order in which a failure does not hide its cause. On the main thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dragoman.tools.doctor.findings import Section
from dragoman.tools.doctor.machine import (
    Cache,
    Machine,
    cache_facts,
    memory_facts,
    memory_section,
    port_section,
    processor_facts,
    processor_section,
    storage_section,
)
from dragoman.tools.doctor.model import ModelFacts, model_section
from dragoman.tools.doctor.software import software_facts, software_section


@dataclass(frozen=True, slots=True)
class ToldModel:
    """The known facts of the model; `facts` is a text if they are few. `problem`: a reason why it cannot be served."""

    facts: ModelFacts | str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """The subject of an examination.

    `tell_model` reads the model, given the available bytes; called last, since its imports may fail.
    """

    host: str
    port: int
    caches: Sequence[Cache]
    tell_model: Callable[[int], ToldModel]
    is_offline: bool = False
    machine: Machine = field(default_factory=Machine)


def examine(question: Question) -> list[Section]:
    """All sections. Takes up to three seconds, as memory and disks are measured."""
    processor = processor_facts(question.machine)
    memory = memory_facts(question.machine, max(1, round(processor.cores_of_time)))
    # Only the first cache's disk is measured, as every start reads it.
    caches = tuple(cache_facts(cache, measures=index == 0) for index, cache in enumerate(question.caches))
    sections = [
        processor_section(processor),
        memory_section(memory),
        storage_section(caches, is_offline=question.is_offline),
        software_section(software_facts(question.machine)),
        port_section(question.machine, question.host, question.port),
    ]
    if any(finding.level == "problem" for finding in (*sections[0].findings, *sections[3].findings)):
        model = ToldModel("not examined: what would load it does not work here")
    else:
        model = question.tell_model(memory.available_bytes)
    return [*sections, model_section(model.facts, memory.bytes_per_s, model.problem)]
