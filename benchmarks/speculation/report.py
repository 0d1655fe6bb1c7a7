"""What was measured, as a table and as values: rates, their ratios, what was guessed, and answers that differ.

Does: fold rounds to medians, with the standard error of what they differ by. Does not: measure. Called by `__main__`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.speculation.asking import Answer, Phase
from benchmarks.speculation.contenders import Contender

OFF = "off"


def fold(contenders: Sequence[Contender], key: tuple[str, int], spell: Callable[[Answer], str]) -> dict[str, Any]:
    """One line: what each did on one kind at one number of streams. The plain server is the first contender."""
    plain = contenders[0].phases[key]
    line: dict[str, Any] = {
        "kind": key[0],
        "streams": key[1],
        "tokens_per_s": {},
        "to_off": {},
        "error": {},
        "speed_to_off": {},
        "differing": {},
    }
    for contender in contenders:
        phases = contender.phases.get(key, [])
        if not phases:
            continue
        line["tokens_per_s"][contender.name] = round(statistics.median(phase.rate for phase in phases), 1)
        if contender is contenders[0]:
            continue
        ratios = [phase.rate / other.rate for phase, other in zip(phases, plain, strict=False)]
        line["to_off"][contender.name] = round(statistics.median(ratios), 3)
        line["error"][contender.name] = round(_standard_error(ratios), 3)
        speeds = [phase.speed / other.speed for phase, other in zip(phases, plain, strict=False) if phase.speed]
        if speeds:
            line["speed_to_off"][contender.name] = round(statistics.median(speeds), 3)
        line["differing"][contender.name] = _differing(phases, plain, spell)
        if guessed := sum(phase.guessed for phase in phases):
            num_tokens = sum(phase.num_tokens for phase in phases)
            accepted = sum(phase.accepted for phase in phases)
            line.setdefault("guessed_per_token", {})[contender.name] = round(guessed / num_tokens, 3)
            line.setdefault("accepted_per_token", {})[contender.name] = round(accepted / num_tokens, 3)
    return line


def _standard_error(ratios: Sequence[float]) -> float:
    """Of their mean; 0 of a single one, about which nothing is known."""
    return statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0


def _differing(phases: Sequence[Phase], plain: Sequence[Phase], spell: Callable[[Answer], str]) -> int:
    return sum(
        spell(answer) != spell(expected)
        for phase, other in zip(phases, plain, strict=False)
        for answer, expected in zip(phase.answers, other.answers, strict=True)
    )


def header(names: Sequence[str]) -> str:
    """The table's first line, for the contenders in their order."""
    own = f"{'kind':<9}{'streams':>8}" + "".join(f"{name + ' tok/s':>17}" for name in names)
    return (
        own
        + "".join(f"{name + '/' + names[0]:>15}{'error':>6}{'speed':>6}{'differ':>7}" for name in names[1:])
        + "  guessed accepted per token"
    )


def row(line: dict[str, Any], names: Sequence[str]) -> str:
    """A line of the table."""
    shown = f"{line['kind']:<9}{line['streams']:>8}"
    shown += "".join(f"{line['tokens_per_s'].get(name, 0.0):>17.1f}" for name in names)
    for name in names[1:]:
        shown += f"{line['to_off'].get(name, 0.0):>15.2f}{line['error'].get(name, 0.0):>6.2f}"
        shown += f"{line['speed_to_off'].get(name, 0.0):>6.2f}"
        shown += f"{line['differing'].get(name, 0):>7}"
    return shown + "  " + ", ".join(_guesses(line))


def _guesses(line: dict[str, Any]) -> Iterator[str]:
    for name, guessed in line.get("guessed_per_token", {}).items():
        yield f"{name} {guessed:.2f} {line['accepted_per_token'][name]:.2f}"
