"""Estimates a model's storage, memory and speed on this machine, from sizes and the measured speed of memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from dragoman.tools.doctor.findings import Finding, Section, in_gb

# Share of the memory's speed that a step of one row reaches: measured 0.5 with weights of 4 bits, 0.7 with 8. Weights of 16
# bits are not unpacked, so the most is assumed.
_LEAST_SHARE, _MOST_SHARE = 0.5, 0.9
_REUSED = {"all": "prompts and answers", "prompt": "prompts", "off": "nothing"}
_SMALL_WEIGHTS = 256 << 20  # below, reading does not dominate a step


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about a model. `least_bytes`: weights with the smallest cache. `cache_bytes`: for `cached_tokens`.

    `reads_all`: a token reads all weights; False with experts.
    """

    name: str
    place: str
    weights_type: str
    computes_in: str
    cache_type: str
    prefix_cache: str
    weights_bytes: int
    least_bytes: int
    cache_bytes: int
    cached_tokens: int
    context: int
    reads_all: bool = True


def model_section(facts: ModelFacts | str, bandwidth: float | None, problem: str = "") -> Section:
    """The section on the model. `facts`: a text if nothing more is known. `problem`: a reason why it cannot be served."""
    findings = [Finding("problem", line, _MEND) for line in problem.splitlines()]
    if isinstance(facts, str):
        return Section("model", (facts,), {}, tuple(findings))
    speed = _tokens_per_s(facts, bandwidth)
    lines = [
        f"{facts.name} in {facts.place}",
        f"weights as {facts.weights_type} ({in_gb(facts.weights_bytes)}), computed in {facts.computes_in}, "
        f"cache in {facts.cache_type}, reused: {_REUSED[facts.prefix_cache]}; context {facts.context} tokens",
        f"needs {in_gb(facts.least_bytes)} at least, would take {in_gb(facts.weights_bytes + facts.cache_bytes)} "
        f"with a cache of {facts.cached_tokens} tokens",
        _speed_line(facts, speed),
    ]
    estimate = None if speed is None else {"from": speed[0], "to": speed[1]}
    report = {**asdict(facts), "estimated_tokens_per_s": estimate}
    return Section("model", tuple(lines), report, (*findings, *_findings(facts, bool(problem))))


_MEND = (
    "name another model or option; `dragoman serve --help-all` lists them, `dragoman config` shows what was resolved"
)


def _tokens_per_s(facts: ModelFacts, bandwidth: float | None) -> tuple[float, float] | None:
    """Tokens a second of one stream with a short context; None = not bound by memory, or unknown."""
    if bandwidth is None or not facts.reads_all or facts.weights_bytes < _SMALL_WEIGHTS:
        return None
    most = bandwidth / facts.weights_bytes
    return round(_LEAST_SHARE * most, 1), round(_MOST_SHARE * most, 1)


def _speed_line(facts: ModelFacts, speed: tuple[float, float] | None) -> str:
    if speed is not None:
        return (
            f"one stream: about {speed[0]:.0f} to {speed[1]:.0f} tokens/s (an estimate: each token reads all weights once; "
            "many streams share that)"
        )
    why = "too small for memory to bound it" if facts.reads_all else "which experts a token reads is not known before"
    return f"speed: not estimated ({why}); `dragoman selftest --quick` measures it"


def _findings(facts: ModelFacts, is_refused: bool) -> Iterator[Finding]:
    if not is_refused and facts.cached_tokens < 2 * facts.context:
        yield Finding(
            "warning",
            f"memory is left for a cache of {facts.cached_tokens} tokens, which is little for requests side by side",
            "bound --max-model-len, store weights smaller (--dtype int4) or give it more memory",
        )
