"""A dead engine thread: everybody is answered, health checks say so, and another engine takes its place."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dragoman.cli.arguments import read_arguments
from dragoman.compose import ComposedModel, Composer, model_profile
from dragoman.config.resolve import Config, demo_model_dir
from dragoman.config.run_time import ModelStore
from dragoman.config.several import resolve_all
from dragoman.engine.factory import BuiltEngine
from dragoman.engine.rolling import assembly
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.forward.runner import ForwardBatch
from dragoman.host.host import ModelHost
from dragoman.host.ledger import MemoryLedger
from dragoman.host.machine import available_memory_bytes
from dragoman.host.recovery import FailurePolicy
from dragoman.server.apis import set_up_all
from dragoman.server.app import ServerConfig
from dragoman.server.hosting import ModelOwner
from dragoman.server.registry import ModelRegistry
from dragoman.server.run import EXIT_ENGINE_FAILED, HttpServer, ListenConfig, loop_factory
from tests.faults.neighbours import checker
from tests.support.adapters import matrices_of, write_adapter
from tests.support.patience import PATIENCE_S
from tests.support.small_server import (
    CALLS,
    AppCall,
    LetterRunner,
    Parts,
    SmallServer,
    length_of,
    run,
    small_server,
)


class Killing(BaseException):
    """What no engine can survive."""


# --- every API, over a model of letters --------------------------------------------------------------------------------


class DyingRunner(LetterRunner):
    """Ends the engine's thread in one forward."""

    def __init__(self, dies_at: int, **options: Any) -> None:
        super().__init__(**options)
        self._dies_at = dies_at

    def forward(self, batch: ForwardBatch) -> Any:
        logits = super().forward(batch)
        if self.num_forwards == self._dies_at:
            raise Killing("a bit fell over")
        return logits


async def answers(server: SmallServer) -> list[AppCall]:
    """All calls at the same time, answered."""
    calls = [server.call(calling) for calling in CALLS]
    for call in calls:
        await call.ended()
    return calls


def text_of(call: AppCall) -> str:
    """What was answered, without what is new each time."""
    return call.body.decode("utf-8", "replace")


@pytest.mark.parametrize("dies_at", [1, 5, 40])
def test_whoever_runs_or_waits_is_answered_in_the_words_of_its_api(dies_at: int) -> None:

    async def test() -> None:
        async with small_server(Parts(DyingRunner(dies_at), config=RollingConfig(max_num_seqs=6))) as server:
            refused = 0
            for calling, call in zip(CALLS, await answers(server), strict=True):
                if "the engine stopped: Killing: a bit fell over" not in text_of(call):
                    assert call.is_cut or call.status < 400, text_of(call)
                    continue
                refused += 1
                assert call.is_complete
                assert call.status == 200 or call.status >= 424
                if call.status >= 400:
                    checker().check_answer(calling.key, call.status, call.media_type, call.body)
            assert refused > len(CALLS) // 3
            assert server.admission.is_idle
            for path in ("/ping", "/health", "/v2/health/ready", "/v2/health/live"):
                health = await server.call(path, method="GET").ended()
                assert (health.status, b"FAILED" in health.body or b"Unhealthy" in health.body) == (500, True)

    run(test)


def test_while_an_engine_is_renewed_calls_are_refused_and_then_answered_as_ever() -> None:

    async def test() -> None:
        async with small_server() as server:
            expected = [(call.status, length_of(call.body)) for call in await answers(server)]
        async with small_server(Parts(DyingRunner(3))) as server:
            await answers(server)
            may_go, counted = asyncio.Event(), server.engine.stats()
            server.runner = LetterRunner()

            async def make() -> BuiltEngine:
                await may_go.wait()
                return BuiltEngine(server.make_engine(server.runner))

            renewing = asyncio.create_task(server.engine.renew(make))
            await asyncio.sleep(0)
            assert (await server.call("/ping", method="GET").ended()).status == 500
            assert (await server.call("/v2/health/live", method="GET").ended()).status == 200
            for calling, call in zip(CALLS, await answers(server), strict=True):
                assert call.status in (424, 429, 503, 529), text_of(call)
                checker().check_answer(calling.key, call.status, call.media_type, call.body)
                assert "retry-after" in call.headers
            may_go.set()
            await renewing
            assert (await server.call("/ping", method="GET").ended()).status == 200
            assert [(call.status, length_of(call.body)) for call in await answers(server)] == expected
            stats = server.engine.stats()
            assert stats.num_restarts == 1
            assert stats.num_steps == (counted.num_steps or 0) + server.runner.num_forwards
            assert stats.step_s is not None
            assert counted.step_s is not None
            assert sum(stats.step_s.counts) > sum(counted.step_s.counts)
            await server.settle()

    run(test)


def test_an_engine_that_cannot_be_renewed_can_be_renewed_later_or_given_up() -> None:
    async def test() -> None:
        async with small_server(Parts(DyingRunner(1))) as server:
            await answers(server)

            async def fail() -> BuiltEngine:
                raise OSError("the file is gone")

            async def make() -> BuiltEngine:
                return BuiltEngine(server.make_engine(LetterRunner()))

            with pytest.raises(OSError, match="the file is gone"):
                await server.engine.renew(fail)
            assert server.engine.health().is_recovering
            server.engine.give_up("nobody can help")
            assert not server.engine.health().is_recovering
            refused = await server.call(CALLS[0]).ended()
            assert refused.status >= 500
            assert b"nobody can help" in refused.body
            await server.engine.renew(make)
            assert all(call.status < 400 for call in await answers(server))

    run(test)


# --- the real engine, in a real server ---------------------------------------------------------------------------------


@dataclass
class Fault:
    """Makes a real model's next forwards end the engine's thread, as long as `is_on`."""

    is_on: bool = False


class FragileRunner(OpenVinoRunner):
    """The real runner with a fault."""

    fault = Fault()
    num_others: ClassVar[list[int]] = []  # runners that were still there when one was made

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.num_others.append(sum(isinstance(one, FragileRunner) for one in gc.get_objects()) - 1)
        super().__init__(*arguments, **options)

    def forward(self, batch: ForwardBatch) -> Any:
        if self.fault.is_on:
            self.fault.is_on = False
            raise Killing("a bit fell over")
        return super().forward(batch)


class RealServer:
    """`dragoman serve` in a thread. `exit_code` None = it runs."""

    def __init__(self, line: str, policy: FailurePolicy) -> None:
        givens = read_arguments(line.split()).givens
        found = resolve_all(givens, {}, demo_model_dir())
        profile = model_profile(found.process)
        registry = ModelRegistry(set_up_all(profile), [config.name for config in found.models], profile)
        self._configs: list[Config] = list(found.models)
        self.exit_code: int | None = None
        self.port = 0
        self._is_ready = threading.Event()
        self._found, self._givens, self._registry, self._policy = found, givens, registry, policy
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._is_ready.wait(60)
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60)

    def _run(self) -> None:
        ledger = MemoryLedger(available_memory_bytes(), available_memory_bytes)
        store = ModelStore(self._found.store, self._found.process, self._givens, {}, demo_model_dir())
        host = ModelHost[ComposedModel](self._registry, Composer(), store, ledger, 5.0, policy=self._policy)

        async def load(registry: ModelRegistry) -> None:
            await host.start(self._configs)
            registry.mark_ready()
            self._is_ready.set()

        def listening(_host: str, port: int) -> None:
            self.port = port

        owner = ModelOwner(None, host.close)
        self.http = HttpServer(self._registry, ServerConfig(), ListenConfig(port=0), load, listening, owner)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            self.exit_code = runner.run(self.http.serve())

    def ask(self, path: str = "/v1/completions", **more: Any) -> httpx.Response:
        body = {"model": "demo_model", "prompt": "The sea is", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
        return self.client.post(path, json={**body, **more})

    def until_status(self, status: int) -> None:
        """Return once `/ping` says so."""
        between = threading.Event()
        for _ in range(6000):
            if self.client.get("/ping").status_code == status:
                return
            between.wait(0.005)
        raise AssertionError(f"/ping never said {status}")

    def metrics(self) -> dict[str, float]:
        families = text_string_to_metric_families(self.client.get("/metrics").text)
        return {sample.name: sample.value for family in families for sample in family.samples}

    def join(self) -> int | None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.exit_code

    def close(self) -> None:
        self.client.close()
        self.http.stop()
        self.http.stop()
        self.join()


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Fault:
    monkeypatch.setattr(assembly, "OpenVinoRunner", FragileRunner)
    # pytest keeps what is logged, and with the traceback the engine that died
    monkeypatch.setattr(logging.getLogger("dragoman.engine.life"), "disabled", True)
    gc.collect()
    FragileRunner.num_others.clear()
    FragileRunner.fault = Fault()
    return FragileRunner.fault


def test_a_model_goes_on_under_its_names_and_with_its_adapters(fault: Fault, tmp_path: Path) -> None:
    modules = matrices_of(demo_model_dir(), ("q_proj", "down_proj"))
    for number, name in enumerate(("first", "second", "third")):
        write_adapter(tmp_path / "adapters" / name, modules, seed=number)
    line = (
        f"{demo_model_dir()} --dtype f32 --kv-cache-gb 0.02 --cache-dir {tmp_path}/cache --name demo_model,other "
        f"--lora first={tmp_path}/adapters/first --enable-lora --max-loras 3 --lora-store {tmp_path}/adapters"
    )
    server = RealServer(line, FailurePolicy(max_restarts=2))
    try:
        for name in ("second", "third"):
            loaded = server.client.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": name})
            assert loaded.status_code == 200, loaded.text
        unloaded = server.client.post("/v1/unload_lora_adapter", json={"lora_name": "first"})
        assert unloaded.status_code == 200, unloaded.text

        def texts() -> list[str]:
            return [server.ask(model=name).json()["choices"][0]["text"] for name in ("other", "second", "third")]

        expected, steps = texts(), server.metrics()["dragoman_steps_total"]
        assert len(set(expected)) == 3
        for number in (1, 2):
            fault.is_on = True
            failed = server.ask()
            assert failed.status_code >= 500
            assert "the engine stopped: Killing: a bit fell over" in failed.json()["error"]["message"]
            server.until_status(200)
            assert texts() == expected
            assert server.ask(model="first").status_code == 404
            assert server.metrics()["dragoman_engine_restarts_total"] == number
            assert server.metrics()["dragoman_steps_total"] > steps
        assert FragileRunner.num_others == [0, 0, 0], "two engines were in memory at the same time"
        fault.is_on = True
        server.ask()
        assert server.client.get("/ping").status_code == 500
        assert server.client.get("/v2/health/live").status_code == 500
        assert server.ask().status_code >= 500
    finally:
        server.close()
    assert server.exit_code == 0


def test_the_process_ends_with_a_code_that_says_so(fault: Fault, tmp_path: Path) -> None:
    line = f"{demo_model_dir()} --dtype f32 --kv-cache-gb 0.02 --cache-dir {tmp_path}/cache --name demo_model"
    server = RealServer(line, FailurePolicy("exit"))
    try:
        fault.is_on = True
        assert server.ask().status_code >= 500
        assert server.join() == EXIT_ENGINE_FAILED
    finally:
        server.close()
