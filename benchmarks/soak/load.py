"""The load on one server: many clients, and a tenant that loads and unloads a model.

Does: send until so many requests were sent, keep the books, read the memory meanwhile. Does not: start the server, or judge.
Runs on one event loop of its own.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.soak import mix
from benchmarks.soak.books import IMAGE_MEMORY, Books, Sample, rest_mismatches
from benchmarks.soak.client import Client, End
from benchmarks.soak.memory import Memory, Reading
from benchmarks.soak.request import ANSWERED, REFUSED, Request

_TENANT_REQUESTS = 12  # for each time that the model is there
_NUM_WARM_CLIENTS = 8
_SETTLING_S = 60.0  # for what clients left behind
_OK = frozenset({200})
_REFUSED_PAUSE_S = (0.5, 2.0)


@dataclass
class Soak:
    """The load on one server. `run` may be called once. `second`: what the tenant loads, "" = there is no tenant."""

    pid: int
    port: int
    kinds: Sequence[str]
    faults: mix.Faults
    num_clients: int
    num_requests: int
    every: int
    seed: int = 0
    num_warm_requests: int = 300  # each kind some thirteen times
    second: str = ""
    books: Books = field(default_factory=Books)
    readings: list[Reading] = field(default_factory=list)
    tenant: Counter[str] = field(default_factory=Counter)
    num_sent: int = 0
    on_reading: Callable[[Reading], None] = lambda reading: None
    _begin_s: float = 0.0

    async def run(self, on_reading: Callable[[Reading], None]) -> None:
        """Warm the server up, then load it; readings are also told as they are made. The first is of the warm server."""
        self.on_reading = on_reading
        await self._warm_up()
        self._begin_s = time.monotonic()
        self._read(is_settled=bool(self.second))
        clients = [asyncio.create_task(self._client(number)) for number in range(self.num_clients)]
        tenant = asyncio.create_task(self._tenant()) if self.second else None
        await asyncio.gather(*clients, *([tenant] if tenant else []))
        await self.settle()
        self._read(is_settled=bool(self.second))

    def _read(self, *, is_settled: bool = False) -> None:
        seconds = round(time.monotonic() - self._begin_s, 1)
        reading = Reading(self.num_sent, seconds, Memory.of(self.pid), is_settled)
        self.readings.append(reading)
        self.on_reading(reading)

    async def settle(self) -> None:
        """Return once the server has ended what clients left behind, or has had long enough for that."""
        end_s = time.monotonic() + _SETTLING_S
        while time.monotonic() < end_s:
            running = await self.running()
            if not any(rest_mismatches(await self.samples(), running).values()):
                return
            await asyncio.sleep(0.05)  # between looks at a process that offers nothing to wait on

    async def samples(self) -> list[Sample]:
        """What `/metrics` tells."""
        text = (await self._get("/metrics")).decode()
        families = text_string_to_metric_families(text)
        return [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]

    async def _holds_pictures(self) -> bool:
        """Whether pictures are in memory now, which take more of it than anything that may be left."""
        return any(value for name, _, value in await self.samples() if name == IMAGE_MEMORY)

    async def running(self) -> list[dict[str, Any]]:
        """What `/debug/requests` lists."""
        listed: list[dict[str, Any]] = json.loads(await self._get("/debug/requests"))
        return listed

    async def _get(self, path: str) -> bytes:
        client = Client(self.port)
        seen = await client.ask(Request("look", path, b"", _OK, method="GET"), "look")
        client.leave()
        if seen.end is not End.ANSWERED or seen.status != 200:
            raise RuntimeError(f"GET {path} of the server: {seen.end}, status {seen.status}")
        return seen.body

    async def _ask(self, client: Client, call_id: str, request: Request) -> int:
        async def one(client: Client, call_id: str) -> int:
            seen = await client.ask(request, call_id)
            self.books.note(call_id, request, seen)
            return seen.status

        others = [Client(self.port) for _ in range(request.num_beside)]
        beside = [one(other, f"{call_id}-beside-{number}") for number, other in enumerate(others)]
        status, *_ = await asyncio.gather(one(client, call_id), *beside)
        for other in others:
            other.leave()
        return status

    async def _warm_up(self) -> None:
        """Every kind and every fault in turn, on a few connections, and the tenant's first visit."""

        async def one(number: int) -> None:
            dice, client = random.Random(f"{self.seed}/warm/{number}"), Client(self.port)
            for index in range(number, self.num_warm_requests, _NUM_WARM_CLIENTS):
                await self._ask(client, f"warm-{index}", mix.warm_up(self.kinds, self.faults, index, dice))
            client.leave()

        await asyncio.gather(*(one(number) for number in range(_NUM_WARM_CLIENTS)))
        if self.second:
            client = Client(self.port)
            await self._visit(client, random.Random(f"{self.seed}/warm/tenant"), 0)
            client.leave()

    async def _client(self, number: int) -> None:
        dice, client = random.Random(f"{self.seed}/{number}"), Client(self.port)
        while self.num_sent < self.num_requests:
            self.num_sent += 1
            call_id = f"soak-{self.num_sent}"
            if self.num_sent % self.every == 0:
                self._read()
            status = await self._ask(client, call_id, mix.next_request(self.kinds, self.faults, dice))
            if status in REFUSED:
                await asyncio.sleep(dice.uniform(*_REFUSED_PAUSE_S))  # as clients do that are told to come again later
        client.leave()

    async def _tenant(self) -> None:
        """Load a model, ask it, unload it, again and again; others ask for it too."""
        dice, client = random.Random(f"{self.seed}/tenant"), Client(self.port)
        visit = 0
        while self.num_sent < self.num_requests or not visit:
            visit += 1
            await self._visit(client, dice, visit)
            self._read(is_settled=not await self._holds_pictures())
        client.leave()

    async def _visit(self, client: Client, dice: random.Random, visit: int) -> None:
        load = Request("load", f"/models?url={self.second}&model_name={mix.GUEST}", b"", _OK, is_call=False)
        self.tenant[f"load {await self._ask(client, f'tenant-{visit}-load', load)}"] += 1
        for index in range(_TENANT_REQUESTS):
            await self._ask(client, f"tenant-{visit}-{index}", mix.for_guest(dice, allowed=ANSWERED | REFUSED))
        unload = Request("unload", f"/models/{mix.GUEST}", b"", _OK, method="DELETE", is_call=False)
        self.tenant[f"unload {await self._ask(client, f'tenant-{visit}-unload', unload)}"] += 1
