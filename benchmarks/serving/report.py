"""Turns stored results into a Markdown table per row.

Does: the newest result of every subject, columns as the results name their values. Does not: measure or plot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from benchmarks.serving.results import Line, Result, Value, latest

OURS = "dragoman (int8)"


def markdown(lines: Sequence[Line], titles: Mapping[int, str]) -> str:
    """A section for every row that has results, and what machine they come from."""
    newest = latest(list(lines))
    sections = [_machines(newest)]
    for row in sorted({line.result.row for line in newest}):
        results = [line.result for line in newest if line.result.row == row]
        sections.append(
            f"## {row}. {titles.get(row, 'Row')}\n\n{table(with_ratio(results))}\n\n{_settings(results)}".rstrip()
        )
    return "\n\n".join(sections) + "\n"


def table(results: Sequence[Result]) -> str:
    """One line per subject; a column per value that any of them has. Kinds of results that share no value come apart."""
    groups: list[list[Result]] = []
    for result in results:
        for group in groups:
            if any(set(result.values) & set(other.values) for other in group):
                group.append(result)
                break
        else:
            groups.append([result])
    return "\n\n".join(_table(group) for group in groups)


def _table(results: Sequence[Result]) -> str:
    columns = list(dict.fromkeys(key for result in results for key in result.values))
    lines = ["| " + " | ".join(["subject", *columns]) + " |", "|---" * (len(columns) + 1) + "|"]
    for result in results:
        cells = [result.subject, *(shown(result.values.get(column)) for column in columns)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def shown(value: Value) -> str:
    """A value for a cell: three significant digits, whole numbers in full, nothing for None, no bars in texts."""
    if value is None:
        return ""
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    if isinstance(value, int | float):
        return f"{value:.0f}"
    return value.replace("|", "/").replace("\n", " ")


def with_ratio(results: Sequence[Result]) -> list[Result]:
    """In row 1 also our rate by theirs."""
    ours = next((one.values.get("tokens_per_s") for one in results if one.row == 1 and one.subject == OURS), None)
    if not isinstance(ours, int | float):
        return list(results)
    return [Result(one.row, one.subject, _with_ratio(one.values, ours), one.settings) for one in results]


def _with_ratio(values: Mapping[str, Value], ours: float) -> Mapping[str, Value]:
    rate = values.get("tokens_per_s")
    return {**values, "ours_by_theirs": round(ours / rate, 3)} if isinstance(rate, int | float) and rate else values


def _settings(results: Sequence[Result]) -> str:
    """What the row was measured with: what most subjects share, then who differs."""
    with_any = [result for result in results if result.settings]
    if not with_any:
        return ""
    keys = dict.fromkeys(key for result in with_any for key in result.settings)
    usual = {key: _most_frequent([result.settings.get(key) for result in with_any]) for key in keys}
    shared = {key: value for key, (value, count) in usual.items() if count > len(with_any) / 2 or len(with_any) == 1}
    lines = ["Measured with " + _listed(shared) + "."] if shared else []
    for result in with_any:
        other = {key: value for key, value in result.settings.items() if key in shared and shared[key] != value}
        if other:
            lines.append(f"{result.subject}: {_listed(other)}.")
    return " ".join(lines)


def _most_frequent(values: Sequence[Value]) -> tuple[Value, int]:
    [(value, count)] = Counter(values).most_common(1)
    return value, count


def _listed(values: Mapping[str, Value]) -> str:
    return ", ".join(f"{key} {shown(value)}" for key, value in values.items())


def _machines(lines: Sequence[Line]) -> str:
    """Every machine that the results were taken on, with the dates."""
    dates: dict[str, list[str]] = {}
    for line in lines:
        described = ", ".join(f"{key} {value}" for key, value in line.machine.items())
        dates.setdefault(described, []).append(line.time[:10])
    return "\n".join(f"Machine: {machine}; {min(days)} to {max(days)}." for machine, days in dates.items())
