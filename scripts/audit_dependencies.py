"""Checks what the project depends on: that every version is pinned and installed as pinned, and known vulnerabilities.

Run: `python scripts/audit_dependencies.py` from the repository's root (`make check` does). Prints one line for each problem
and exits 1 if there is one. Vulnerabilities are asked of the service of pip-audit; where that cannot be reached, or knows
nothing of the packages, a line says so, and it is no failure.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYPROJECT, CONSTRAINTS = Path("pyproject.toml"), Path("constraints.txt")
EXTRAS = ("dev", "remote")  # those that are installed and tested here; the others bring environments of their own

_PIN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9.!+_]+)")

IGNORED: Mapping[str, str] = {}
"""Vulnerabilities that do not concern this project, by their ids: why not."""

TIMEOUT_S = 120


def read_pins(text: str) -> tuple[dict[str, str], list[str]]:
    """The pinned versions by normalised name, and a line for what is no pin, or a second version of a package."""
    pins: dict[str, str] = {}
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _PIN.fullmatch(line.strip())
        if match is None:
            problems.append(f"{CONSTRAINTS} line {number}: {line.strip()!r} must have the form NAME==VERSION")
        elif pins.setdefault(canonicalize_name(match["name"]), match["version"]) != match["version"]:
            problems.append(f"{CONSTRAINTS} line {number}: {match['name']} is pinned to two versions")
    return pins, problems


def requirements(pyproject: Mapping[str, Mapping[str, object]]) -> list[Requirement]:
    """What is declared: the dependencies, the build's, and those of the extras that are tested here."""
    project, build = pyproject["project"], pyproject["build-system"]
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    lists = [project["dependencies"], build["requires"], *(extras[name] for name in EXTRAS)]
    return [Requirement(text) for texts in lists if isinstance(texts, list) for text in texts]


def pin_problems(declared: Sequence[Requirement], pins: Mapping[str, str]) -> Iterator[str]:
    """A line for each declared package that is not pinned, is pinned to what is not allowed, or comes from elsewhere."""
    for one in declared:
        pinned = pins.get(canonicalize_name(one.name))
        if one.url is not None:
            yield f"{PYPROJECT}: {one.name} must come from the package index, not from {one.url}"
        elif pinned is None:
            yield f"{CONSTRAINTS}: {one.name} is declared in {PYPROJECT} and not pinned; `make pin` does it"
        elif not one.specifier.contains(pinned, prereleases=True):
            yield f"{CONSTRAINTS}: {one.name} is pinned to {pinned}, {PYPROJECT} asks for {one.specifier}"


def installed_problems(pins: Mapping[str, str]) -> Iterator[str]:
    """A line for each package that is installed here in another version than it is pinned to."""
    for name, pinned in pins.items():
        try:
            found = version(name)
        except PackageNotFoundError:  # of another platform, or only needed to build
            continue
        if found != pinned:
            yield f"{name} {found} is installed, {pinned} is pinned in {CONSTRAINTS}"


def vulnerabilities(text: str) -> tuple[list[str], list[str]]:
    """Of pip-audit's JSON: a line for each vulnerability, and the packages of which nobody knew anything.

    Raises: ValueError if it is none, for want of an answer.
    """
    found = json.loads(text)
    if not isinstance(found, dict) or "dependencies" not in found:
        raise ValueError(text[:100])
    lines = [
        f"{one['name']} {one['version']}: {known['id']}, mended in {', '.join(known['fix_versions']) or 'no version'}"
        for one in found["dependencies"]
        for known in one.get("vulns", ())
        if not {known["id"], *known.get("aliases", ())} & IGNORED.keys()
    ]
    return lines, [one["name"] for one in found["dependencies"] if "skip_reason" in one]


def ask_service() -> tuple[list[str], str]:
    """A line for each known vulnerability of what is pinned, and what could not be found out, "" if all could."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(CONSTRAINTS), "--no-deps", "--disable-pip"]
    command += ["--format", "json", "--progress-spinner", "off", "--timeout", "15"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return [], f"no answer in {TIMEOUT_S} s"
    try:
        lines, unknown = vulnerabilities(result.stdout)
    except ValueError:
        told = result.stderr.strip().splitlines()
        return [], told[-1][:200] if told else "no answer"
    names = ", ".join(unknown[:3])
    return lines, f"the service knows nothing of {len(unknown)} packages ({names}, ...)" if unknown else ""


def main() -> int:
    """Check all; the exit code."""
    pins, problems = read_pins(CONSTRAINTS.read_text(encoding="utf-8"))
    problems += pin_problems(requirements(tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))), pins)
    problems += installed_problems(pins)
    known, why_not = ask_service()
    if why_not:
        sys.stdout.write(f"note: known vulnerabilities were not checked, or not all: {why_not}\n")
    sys.stdout.write("".join(f"{line}\n" for line in (*problems, *known)))
    return 1 if problems or known else 0


if __name__ == "__main__":
    sys.exit(main())
