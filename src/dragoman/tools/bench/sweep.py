"""Runs a benchmark: probes the server, warms it up, runs each point. Called by the command, on the event loop."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from dragoman.tools.bench.answer import Sample
from dragoman.tools.bench.apis import BenchApi, Prompt, Question
from dragoman.tools.bench.asking import Asker
from dragoman.tools.bench.client import HttpClient, Target
from dragoman.tools.bench.load import BenchError, Extent, Lengths, Load, OptionError, Run, drive
from dragoman.tools.bench.measures import Measures, measures
from dragoman.tools.bench.probing import Prober
from dragoman.tools.bench.prompts import WORDS, FilePrompts, Prompts, SyntheticPrompts
from dragoman.tools.percentiles import percentile

_WARM_UP = -1  # a number that no point has
_TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """The settings of a benchmark, by the names of the command's options. `model` "" = the server's first.

    `extent`: of each point. `prompts` None = synthetic ones of `prompt_tokens`, the first `shared_prefix` equal in all.
    `warmup`: uncounted requests before each point. `slo`: bounds in seconds by name. `body`: merged into the bodies.
    `batch`: prompts per request, if the API takes several.
    """

    target: Target
    loads: tuple[Load, ...]
    extent: Extent
    api: str
    model: str
    header: Mapping[str, str]
    api_key: str
    timeout: float
    prompts: FilePrompts | None
    prompt_tokens: Lengths
    shared_prefix: int
    output_tokens: Lengths
    ignore_eos: bool
    warmup: int
    seed: int
    batch: int
    slo: Mapping[str, float]
    body: Mapping[str, Any]


class Point(msgspec.Struct):
    """One point of a sweep. `is_complete`: it was not interrupted. `client_cpu`: cores that the load generator used.

    `late_s`: the delay within which 99 % of requests were sent. `resent`: sent again after a closed connection.
    """

    kind: str
    value: float
    measures: Measures
    late_s: float
    resent: int
    client_cpu: float
    is_complete: bool

    @property
    def label(self) -> str:
        return f"{self.kind} {self.value:g}"


class Report(msgspec.Struct):
    """The results so far. `tokens_per_word` None = unknown; a word then counts as a token."""

    url: str
    api: str = ""
    model: str = ""
    seed: int = 0
    prompts: str = ""
    output_tokens: str = ""
    ignore_eos: bool = False
    tokens_per_word: float | None = None
    bounds_s: dict[str, float] = msgspec.field(default_factory=dict)
    notes: list[str] = msgspec.field(default_factory=list)
    points: list[Point] = msgspec.field(default_factory=list)


OnProgress = Callable[[str, Run], None]
"""Called several times a second with the present step and its run."""


class Benchmark:
    """One benchmark. `report` grows while it runs."""

    def __init__(self, settings: BenchSettings, on_progress: OnProgress) -> None:
        self.report = Report(
            settings.target.origin + settings.target.path,
            seed=settings.seed,
            output_tokens=str(settings.output_tokens),
            ignore_eos=settings.ignore_eos,
            bounds_s=dict(settings.slo),
        )
        self._settings = settings
        self._on_progress = on_progress
        self._client = HttpClient(settings.target, _headers(settings))

    async def run(self) -> None:
        """Run the benchmark. Raises: BenchError, OptionError if nothing can be measured."""
        try:
            asker = await self._found()
            prompts = await self._prompts(asker)
            for number, load in enumerate(self._settings.loads):
                question = partial(_question, self._settings, asker, prompts)
                # Points do not repeat a question of the warm-up, except with a file of prompts.
                await self._warm_up(asker, partial(question, _WARM_UP - number), load)
                await self._point(asker, partial(question, number), load)
        finally:
            self._client.close()

    async def _found(self) -> Asker:
        settings = self._settings
        prober = Prober(self._client, settings.target, settings.timeout, settings.model, dict(settings.body))
        found = await prober.find(settings.api)
        _check(settings, found.api)
        self._client.close()
        self._client = HttpClient(settings.target, {**found.api.headers, **_headers(settings)})
        report = self.report
        report.url = settings.target.origin + found.path
        report.api, report.model = found.api.name, found.model
        return replace(found, client=self._client)

    async def _prompts(self, asker: Asker) -> Prompts:
        settings = self._settings
        if settings.prompts is not None:
            self.report.prompts = f"{len(settings.prompts.prompts)} from a file"
            return settings.prompts
        shared = f", the first {settings.shared_prefix} the same in all" if settings.shared_prefix else ""
        self.report.prompts = f"{settings.prompt_tokens} tokens of made-up text{shared}"
        plain = SyntheticPrompts(settings.prompt_tokens, settings.seed, settings.shared_prefix)
        found = await _calibrated(asker, plain)
        if found is None:
            self.report.notes.append("the server does not tell how many tokens a prompt has: a word is taken for one")
            return plain
        self.report.tokens_per_word = found.tokens_per_word
        return found

    async def _warm_up(self, asker: Asker, question: Callable[[int], Question], load: Load) -> None:
        """Send uncounted requests. Raises: BenchError if none of them is answered."""
        count = self._settings.warmup
        if not count:
            return
        clients = min(count, int(load.value)) if load.kind == "concurrency" else 1
        run = await self._driven(
            f"{load}: warm-up",
            Load("concurrency", clients),
            Run(Extent(count), is_counted=False),
            asker,
            question,
        )
        if all(sample.error for sample in run.samples):
            first = run.samples[0]
            raise BenchError(f"{self.report.url}: {first.error}: {first.message}")

    async def _point(self, asker: Asker, question: Callable[[int], Question], load: Load) -> None:
        run, cpu_s, is_complete = Run(self._settings.extent), time.process_time(), False
        resent = self._client.resent
        try:
            await self._driven(str(load), load, run, asker, question)
            is_complete = True
        finally:
            used = (time.process_time() - cpu_s) / max(run.duration_s, 1e-9)
            measured = measures(
                run.samples,
                run.duration_s,
                unfinished=run.running,
                is_streamed=not asker.api.is_batch,
                bounds=self._settings.slo,
            )
            late_s = percentile([sample.sent_s - sample.due_s for sample in run.samples], 0.99)
            resent = self._client.resent - resent
            self.report.points.append(Point(load.kind, load.value, measured, late_s, resent, used, is_complete))

    async def _driven(self, label: str, load: Load, run: Run, asker: Asker, question: Callable[[int], Question]) -> Run:
        async def send(number: int, due_s: float | None) -> Sample:
            return await asker.ask(question(number), due_s)

        async def tick() -> None:
            while True:
                self._on_progress(label, run)
                await asyncio.sleep(_TICK_S)

        ticking = asyncio.create_task(tick())
        try:
            await drive(run, load, send, f"{self._settings.seed}/{load}")
        finally:
            ticking.cancel()
            self._on_progress(label, run)
        return run


def _question(settings: BenchSettings, asker: Asker, prompts: Prompts, point: int, number: int) -> Question:
    count = settings.batch if asker.api.is_batch else 1
    texts = [prompts.prompt(point, number * count + index) for index in range(count)]
    dice = random.Random(f"{settings.seed}/{point}/{number}/output")
    most = texts[0].output_tokens or settings.output_tokens.draw(dice)
    return Question(texts, most, asker.model, settings.ignore_eos)


def _headers(settings: BenchSettings) -> dict[str, str]:
    """The headers of all requests. A key goes in both usual headers, unless the user sets one of them."""
    key = {"authorization": f"Bearer {settings.api_key}", "x-api-key": settings.api_key} if settings.api_key else {}
    return key | {name.lower(): value for name, value in settings.header.items()}


def _check(settings: BenchSettings, api: BenchApi) -> None:
    """Raises: OptionError if the API does not support a setting."""
    if settings.ignore_eos and not api.can_ignore_eos:
        raise OptionError(
            "ignore_eos", f"API {api.name} has no such parameter; leave it out (answers may then be shorter)"
        )
    prompts = settings.prompts.prompts if settings.prompts is not None else ()
    if not api.takes_messages and any(prompt.messages for prompt in prompts):
        raise OptionError("prompts", f"API {api.name} takes texts, but the file holds conversations")


async def _calibrated(asker: Asker, prompts: SyntheticPrompts) -> SyntheticPrompts | None:
    """The same prompts with the server's token counts; None if it does not report them."""
    counts = []
    for words in (WORDS, WORDS * 2):  # all words, so that their mean is exact
        sample = await asker.ask(Question([Prompt(" ".join(words))], 1, asker.model))
        if sample.prompt_tokens is None:
            return None
        counts.append(sample.prompt_tokens)
    once, twice = counts
    if twice <= once:
        return None
    return replace(prompts, tokens_per_word=(twice - once) / len(WORDS), overhead=max(0.0, 2.0 * once - twice))
