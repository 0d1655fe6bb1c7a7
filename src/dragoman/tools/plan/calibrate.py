"""Measures the cost of steps: sends requests to a server, and fits costs to its step log. On the main thread.

Steps are measured over HTTP, because HTTP, the tokenizer and the clients compute beside them.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Protocol

import msgspec

from dragoman.engine.rolling.step_log import LoggedStep, read_step_log
from dragoman.tools.plan.costs import MeasuredStep, StepCosts, fit_costs, slowness_of
from dragoman.tools.plan.simulate import Replica

_SHORT_PROMPT = 8  # tokens of prompts that serve only for decoding
_SMALLEST_PIECE = 16
_NUM_LONG = 4  # sequences with a long context
# Its tokens: costs grow linearly with the context. A longer one gives more exact costs, but takes time to compute.
_LONG, _LONGEST = 512, 1024
_DECODE_STEPS = 24
_LONG_STEPS = 64  # of sequences with a long context: the first ones decode while the others' prompts are computed
_REPEATS = 2
# Rounds of all measurements in different orders: a case measured only in a slow second of the machine would seem expensive.
_NUM_ROUNDS = 2
# Prompts that share a step: without such steps, the costs of tokens and of their contexts could not be separated.
_NUM_TOGETHER = 4
_NUM_CLIENTS = (1, 2, 4, 8, 16, 36)  # clients with the planned requests: from hardly any load to a full server
# Of each number of clients, in each round; longer until each client has an answer, up to a bound.
_CLIENTS_S, _MOST_CLIENTS_S = 4.0, 12.0

Report = Callable[[str, float], None]  # takes a stage and its finished share
Stage = Callable[[], Awaitable[None]]
"""Asks a server for something to be measured."""


class CalibrationFailed(RuntimeError):
    """Costs could not be measured; the message says why, on one line."""


@dataclass(slots=True)
class Answer:
    """The times of a request and of its tokens; seconds on the clock of the step log."""

    sent_s: float
    token_s: list[float] = field(default_factory=list)


class Service(Protocol):
    async def ask(self, prompt_tokens: int, output_tokens: int) -> Answer:
        """Send a request with a unique prompt; cancelling this ends it. Raises: CalibrationFailed."""
        ...


@dataclass(frozen=True, slots=True)
class Cases:
    """The cases to measure, in tokens. `counts`: of decoding sequences. `pieces`: of prompts; `parts` share a step.

    `clients`: numbers of clients with `usual` prompt and completion tokens, each for `clients_s` seconds or longer.
    """

    counts: tuple[int, ...]
    pieces: tuple[int, ...]
    parts: tuple[int, ...]
    long: int
    clients: tuple[int, ...]
    usual: tuple[int, int]
    longest: int
    clients_s: float = _CLIENTS_S

    @classmethod
    def of(cls, planned: Replica, prompt_tokens: int, output_tokens: int) -> Cases:
        """The cases for a replica with these limits, mainly for requests of these lengths."""
        limits, size = planned.limits, planned.block_size
        longest = min(planned.max_model_len, limits.max_model_len or planned.max_model_len)
        total = min(prompt_tokens + output_tokens, longest)
        long = max(min(max(total, _LONG), _LONGEST, longest // 2), _SHORT_PROMPT)
        counts = _powers(1, min(limits.max_num_seqs, planned.num_sequences(2 * size)))
        sizes = _powers(_SMALLEST_PIECE, limits.max_batch_tokens)
        pieces = [size for size in sizes if size < longest]
        parts = {size // _NUM_TOGETHER for size in sizes if size >= _NUM_TOGETHER * _SMALLEST_PIECE}
        parts = {part for part in parts if part < longest and counts[-1] >= _NUM_TOGETHER}
        most = max(planned.num_sequences(total), 1)
        clients = tuple(sorted({min(count, most) for count in _NUM_CLIENTS}))
        usual = (max(min(prompt_tokens, longest - 1), 1), output_tokens)
        return cls(tuple(counts), tuple(pieces), tuple(sorted(parts)), long, clients, usual, longest)


def duration_s(cases: Cases) -> tuple[float, float]:
    """The seconds of measuring, at least and on a slow machine; most are in service."""
    num_stages = _NUM_ROUNDS * len(cases.clients)
    return num_stages * cases.clients_s, num_stages * max(_MOST_CLIENTS_S, cases.clients_s)


@dataclass(slots=True)
class Asked:
    """The sent requests. `alone`: answers to requests without company. `in_service`: periods with clients."""

    alone: list[Answer] = field(default_factory=list)
    in_service: list[tuple[float, float]] = field(default_factory=list)

    def is_in_service(self, time_s: float) -> bool:
        return any(begin_s <= time_s <= end_s for begin_s, end_s in self.in_service)


def stages_of(service: Service, cases: Cases, clock: Callable[[], float] = perf_counter) -> tuple[list[Stage], Asked]:
    """All measurements, in rounds, and the record of their requests. A stage raises: CalibrationFailed."""
    stages, order = _Stages(service, cases, clock), random.Random(0)
    todo = stages.all()
    return [stage for _ in range(_NUM_ROUNDS) for stage in order.sample(todo, len(todo))], stages.asked


async def ask_all(service: Service, cases: Cases, report: Report, clock: Callable[[], float] = perf_counter) -> Asked:
    """Run all measurements, one stage after the other. Raises: CalibrationFailed."""
    stages, load = stages_of(service, cases, clock)
    report("measuring steps", 0.0)
    for done, stage in enumerate(stages, start=1):
        await stage()
        report("measuring steps", done / len(stages))
    return load


class _Stages:
    def __init__(self, service: Service, cases: Cases, clock: Callable[[], float]) -> None:
        self._service, self._cases, self._clock = service, cases, clock
        self._lengths = random.Random(1)
        self.asked = Asked()

    def all(self) -> list[Stage]:
        cases, most = self._cases, self._cases.counts[-1]
        stages: list[Stage] = [partial(self._decode, count, _SHORT_PROMPT, _DECODE_STEPS) for count in cases.counts]
        stages += [partial(self._compute, piece, 1) for piece in cases.pieces]
        stages += [partial(self._compute, part, _NUM_TOGETHER) for part in cases.parts]
        stages.append(partial(self._decode, min(_NUM_LONG, most), cases.long, _LONG_STEPS))
        if most > 1:
            stages.append(self._compute_beside)
        return stages + [partial(self._serve, count) for count in cases.clients]

    async def _decode(self, count: int, prompt_tokens: int, num_steps: int) -> None:
        await asyncio.gather(*(self._ask(prompt_tokens, num_steps) for _ in range(count)))

    async def _compute(self, prompt_tokens: int, count: int) -> None:
        for _ in range(_REPEATS):
            answers = await asyncio.gather(*(self._ask(prompt_tokens, 1) for _ in range(count)))
            if count == 1:
                self.asked.alone += answers

    async def _compute_beside(self) -> None:
        cases = self._cases
        num_others = max(min(cases.counts[-1] // 2, _NUM_LONG), 1)
        others = [asyncio.create_task(self._ask(_SHORT_PROMPT, cases.longest)) for _ in range(num_others)]
        try:
            await self._ask(_SHORT_PROMPT, 1)  # its answer means that the others run
            for piece in sorted({piece // 2 for piece in cases.pieces}):
                await self._ask(max(piece, 1), 1)
        finally:
            await _end(others)

    async def _serve(self, count: int) -> None:
        """Run `count` clients that send one request after the other, of 0.5 to 1.5 times the usual lengths."""
        begin_s = self._clock()
        end_s = begin_s + self._cases.clients_s
        prompt_tokens, output_tokens = self._cases.usual
        waiting = set(range(count))  # clients without an answer

        async def client(number: int) -> None:
            while self._clock() < end_s or waiting:
                await self._ask(self._about(prompt_tokens), self._about(output_tokens))
                waiting.discard(number)

        clients = [asyncio.create_task(client(number)) for number in range(count)]
        try:
            await self._pass(end_s, clients)
            if waiting:
                await self._pass(begin_s + max(_MOST_CLIENTS_S, self._cases.clients_s), clients)
        finally:
            await _end(clients)
        self.asked.in_service.append((begin_s, self._clock()))

    async def _pass(self, until_s: float, clients: Sequence[asyncio.Task[None]]) -> None:
        """Wait until this time, or until a client fails. Raises: CalibrationFailed."""
        while (left_s := until_s - self._clock()) > 0 and not all(client.done() for client in clients):
            done, _ = await asyncio.wait(clients, timeout=left_s, return_when=asyncio.FIRST_EXCEPTION)
            for client in done:
                client.result()

    async def _ask(self, prompt_tokens: int, output_tokens: int) -> Answer:
        prompt_tokens = max(min(prompt_tokens, self._cases.longest - 1), 1)
        return await self._service.ask(prompt_tokens, min(output_tokens, self._cases.longest - prompt_tokens))

    def _about(self, num_tokens: int) -> int:
        return max(round(num_tokens * self._lengths.uniform(0.5, 1.5)), 1)


async def _end(tasks: Sequence[asyncio.Task[Answer]] | Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError, CalibrationFailed):
            await task


def logged_steps(path: Path) -> list[LoggedStep]:
    """The steps in a log. Raises: CalibrationFailed."""
    try:
        return read_step_log(path)
    except (OSError, msgspec.DecodeError) as error:
        raise CalibrationFailed(f"must be a step log that can be read ({error})") from error


def costs_of(steps: Sequence[LoggedStep], load: Asked | None = None) -> StepCosts:
    """The costs by a log. `asked` None = the log is of ordinary service. Raises: CalibrationFailed for too few steps."""
    in_service = [load is None or load.is_in_service(step.begin_s) for step in steps]
    measured = _measured(steps)
    counted = _without_firsts(measured, in_service)
    if not counted:
        raise CalibrationFailed("must be the step log of a server that has answered requests, but it holds no steps")
    if len({len(step.work.contexts) for step in counted}) > 1:
        raise CalibrationFailed("must be the step log of one model, but its steps use different kinds of cache")
    costs = fit_costs(counted)
    return msgspec.structs.replace(
        costs, slowness=slowness_of(costs, counted), http_s=_http_s(steps, load.alone if load else ())
    )


def _measured(steps: Sequence[LoggedStep]) -> list[MeasuredStep]:
    sizes = [0, *(step.work.num_tokens for step in steps)]
    changes = [before != size for before, size in pairwise(sizes)]
    return [MeasuredStep(step.work, step.seconds, is_change) for step, is_change in zip(steps, changes, strict=True)]


def _without_firsts(steps: Sequence[MeasuredStep], in_service: Sequence[bool]) -> list[MeasuredStep]:
    """The steps without the first of every shape, in which kernels are chosen. Steps in service keep them."""
    found, shapes = [], set()
    for step, serves in zip(steps, in_service, strict=True):
        shape = (step.work.num_tokens, step.work.num_rows)
        if serves or shape in shapes:
            found.append(step)
        shapes.add(shape)
    return found


def _http_s(steps: Sequence[LoggedStep], alone: Sequence[Answer]) -> float:
    """The median wait of a lone client for its first token, without the steps; 0 if no client was alone."""
    begins = [step.begin_s for step in steps]
    waits = []
    for answer in alone:
        first_s = answer.token_s[0]
        within = steps[bisect_left(begins, answer.sent_s) : bisect_left(begins, first_s)]
        waits.append(first_s - answer.sent_s - sum(step.seconds for step in within))
    return max(median(waits), 0.0) if waits else 0.0


def _powers(least: int, most: int) -> list[int]:
    """The powers of two in this range, and its end; the range begins at a power of two."""
    found = []
    while least < most:
        found.append(least)
        least *= 2
    return [*found, max(most, 1)]
