"""The checks of a self-test, the texts that they use, and their report as a table or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from dragoman.engine.factory import EngineSetup, Progress
from dragoman.tools.text_table import aligned

Encode = Callable[[str], Sequence[int]]
"""From a text to its tokens."""

Verdict = Literal["ok", "off", "skipped"]


class Check(msgspec.Struct, frozen=True):
    """One check. `found` and `allowed` as text; `why`: the problem, or the reason for skipping, else ""."""

    name: str
    verdict: Verdict
    found: str = ""
    allowed: str = ""
    why: str = ""

    @classmethod
    def judged(cls, name: str, is_ok: bool, found: str, allowed: str, why: str) -> Check:
        """A finished check. `why`: the meaning of a failure."""
        return cls(name, "ok" if is_ok else "off", found, allowed, "" if is_ok else why)


@dataclass(frozen=True, slots=True)
class Trial:
    """The subject of a self-test: a model by its engine's settings. `is_quick`: without loading it again."""

    name: str
    setup: EngineSetup
    encode: Encode
    progress: Progress
    is_quick: bool

    def skipped(self, check: str, needless: str) -> Check | None:
        """The check that would load the model again; None if it must run. `needless`: why it need not, "" = it must."""
        why = needless or ("it loads the model again, which --quick leaves out" if self.is_quick else "")
        return Check(check, "skipped", why=why) if why else None

    def setup_with(self, **options: Any) -> EngineSetup:
        """The settings with other values of these options."""
        return replace(self.setup, options={**self.setup.options, **options}, progress=self.progress)


class SelfTest(msgspec.Struct, frozen=True):
    """All checks of a model. `seconds`: their duration without loading."""

    model: str
    stored_as: str
    seconds: float
    checks: list[Check]

    @property
    def is_off(self) -> bool:
        return any(check.verdict == "off" for check in self.checks)


def report_json(found: SelfTest) -> str:
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n"


def report_text(found: SelfTest) -> str:
    """The findings for people, one line per check."""
    head = f"{found.model}, {found.stored_as}: {len(found.checks)} checks in {found.seconds:.1f} s\n\n"
    rows = [("check", "", "found", "allowed"), *((c.name, c.verdict, c.found, c.allowed) for c in found.checks)]
    notes = [f"{check.name}: {check.why}\n" for check in found.checks if check.why]
    off = [check.name for check in found.checks if check.verdict == "off"]
    last = f"\noff: {', '.join(off)}\n" if off else "\nnothing is off\n"
    return "".join((head, aligned(rows), *(["\n"] if notes else []), *notes, last))


TEXTS = (
    "The harbour lies in the shade of a long hill. In the morning the boats go out one after another, and by noon they "
    "come back with what the sea has given them. Old men sit on the wall and count them. When one is late, nobody says "
    "a word, but all look at the place where the water meets the sky, until a small dark point appears there.",
    "To make bread you need flour, water, salt and yeast. Mix them in a bowl until no dry flour is left, cover the bowl "
    "and wait for an hour. Fold the dough four times, wait again, and shape it into a round loaf. Bake it in a hot oven "
    "for forty minutes, and let it cool before you cut it.",
    "A binary search looks for a value in a sorted list. It compares the value with the one in the middle. If they are "
    "equal, it has found the place. If the value is smaller, it goes on with the left half, else with the right one. "
    "Each step halves what is left, so a million entries take twenty steps.",
    "Question: Why is the sky blue?\nAnswer: Light from the sun is scattered by the air. Short waves are scattered more "
    "than long ones, so blue light reaches our eyes from every direction.",
)
