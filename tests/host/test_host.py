"""What the owner of the models promises of names, states and failures, and to calls in flight."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dragoman.config.resolve import ConfigError
from dragoman.errors import (
    Cancelled,
    Conflict,
    EngineFailed,
    InvalidRequest,
    NotFound,
    ServerError,
    Unavailable,
)
from dragoman.models import ModelError
from dragoman.server.hosting import ModelHosting, ModelSource, ModelState
from tests.support.fake_models import SIZE, Hosting, answer, held, load, play, refusal, states
from tests.support.patience import until

# --- load and unload --------------------------------------------------------------------------------------------------


def test_a_model_is_served_only_after_its_load(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        found.builder.gates["a"] = asyncio.Event()
        (found.store / "a" / "model.safetensors").write_bytes(bytes(1000))
        loading = asyncio.create_task(found.host.load(ModelSource("a", version="2")))
        await until(lambda: found.builder.started)
        assert states(found) == {"a": "loading"}
        assert found.registry.expected_names == ("a",)
        progress = found.registry.progress_of("a")
        assert progress is not None
        assert (progress.stage, progress.fraction) == ("building the graph", 0.5)
        assert progress.bytes_read == progress.bytes_total // 2 == 500
        with pytest.raises(Unavailable, match="still loading"):
            found.registry.find("a")
        found.builder.gates["a"].set()
        status = await loading
        assert (status.state, status.url, status.version) == (ModelState.READY, str(found.store / "a"), "2")
        assert status.loaded_s > 0
        assert found.registry.find("a") is found.registry.find("a/2") is found.registry.find(None)
        assert not found.registry.expected_names

    play(tmp_path, scenario)


def test_the_host_implements_the_protocol(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        host: ModelHosting = found.host
        assert [source.name for source in host.stored()] == ["a", "b", "c"]

    play(tmp_path, scenario)


def test_after_an_unload_the_next_model_is_the_default(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "a", "b")
        engine, [built] = (
            found.engine("a"),
            [found.host._hosted["a"].built],
        )  # white box: nobody else sees the part that closes
        assert built is not None
        await found.host.unload("a")
        assert found.names == ["b"]
        assert found.registry.find(None).name == "b"
        assert (engine.num_shutdowns, built.is_closed) == (1, True)  # type: ignore[attr-defined]
        assert held(found.ledger) == {"b": SIZE}
        for name in ("a", "x"):
            assert isinstance(await refusal(found.host.unload(name)), NotFound)
        await found.host.unload("b")
        with pytest.raises(NotFound, match="no model is loaded"):
            found.registry.find(None)
        await load(found, "a")
        assert found.registry.find(None).name == "a"

    play(tmp_path, scenario)


def test_one_operation_at_a_time_has_a_name_while_others_run(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        found.builder.gates["a"] = asyncio.Event()
        loading = asyncio.create_task(found.host.load(ModelSource("a")))
        await until(lambda: found.builder.started)
        await load(found, "b")
        for work in (found.host.load(ModelSource("a")), found.host.unload("a"), found.host.replace(ModelSource("a"))):
            assert "being loaded" in (await refusal(work)).message
        assert isinstance(await refusal(found.host.load(ModelSource("c", "b"))), Conflict)
        found.builder.gates["a"].set()
        await loading
        assert isinstance(await refusal(found.host.load(ModelSource("a"))), Conflict)
        assert found.names == ["b", "a"]

    play(tmp_path, scenario)


def test_running_calls_finish_before_an_unload_and_new_ones_are_refused(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "a", "b")
        model, done = found.registry.find("a"), asyncio.Event()
        call = asyncio.create_task(answer(model, done))
        await until(lambda: model.admission.num_in_flight)
        unloading = asyncio.create_task(found.host.unload("a"))
        await until(lambda: states(found)["a"] == "unloading")
        with pytest.raises(Unavailable, match="Model a is being unloaded"):
            found.registry.find("a")
        with pytest.raises(Unavailable, match="being unloaded"), model.admission.permit():
            pass
        assert found.registry.find(None).name == "b"
        assert isinstance(await refusal(found.host.unload("a")), Conflict)
        assert held(found.ledger)["a"] == SIZE, "it is not gone yet"
        done.set()
        assert await call == "a"
        await unloading

    play(tmp_path, scenario)


def test_calls_that_do_not_finish_in_time_are_aborted(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "a")
        call = asyncio.create_task(answer(found.registry.find("a"), asyncio.Event()))
        await until(lambda: found.registry.find("a").admission.num_in_flight)
        await found.host.unload("a")
        assert isinstance(await refusal(call), Cancelled)

    play(tmp_path, scenario, drain_s=0.01)


def test_a_caller_that_leaves_ends_no_operation_halfway(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        found.builder.gates["a"] = asyncio.Event()
        loading = asyncio.create_task(found.host.load(ModelSource("a")))
        await until(lambda: found.builder.started)
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        found.builder.gates["a"].set()
        await until(lambda: found.names == ["a"])

    play(tmp_path, scenario)


def test_an_engine_that_fails_to_end_does_not_keep_its_place(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "a")

        async def fail(drain_s: float) -> None:
            raise RuntimeError("stuck")

        found.engine("a").shutdown = fail  # type: ignore[method-assign]
        await found.host.unload("a")
        assert found.ledger.held_bytes == 0

    play(tmp_path, scenario)


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "kind", "text"),
    [
        (ModelError("no weights"), InvalidRequest, "Model a cannot be used: no weights"),
        (ConfigError(["one", "two"]), InvalidRequest, "one; two"),
        (RuntimeError("broken"), EngineFailed, "Model a could not be loaded: RuntimeError: broken"),
        (MemoryError(), EngineFailed, "Model a could not be loaded: MemoryError: "),
    ],
)
def test_a_failed_load_changes_nothing(tmp_path: Path, failure: Exception, kind: type[ServerError], text: str) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "b")
        found.builder.failures["a"] = failure
        error = await refusal(found.host.load(ModelSource("a")))
        assert (type(error), error.message) == (kind, text.strip())
        assert held(found.ledger) == {"b": SIZE}
        assert (found.names, found.registry.expected_names) == (["b"], ())
        status = found.host.status("a")
        assert (status.state, status.memory.total) == (ModelState.FAILED, 0)
        assert status.reason
        with pytest.raises(NotFound):
            found.registry.find("a")
        assert isinstance(await refusal(found.host.replace(ModelSource("a"))), NotFound)
        with pytest.raises(NotFound):
            found.host.pin("a")
        del found.builder.failures["a"]
        await load(found, "a")
        assert states(found) == {"b": "ready", "a": "ready"}

    play(tmp_path, scenario)


def test_failures_are_forgotten_by_an_unload_or_if_they_are_too_many(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        for number in range(110):
            name = f"m{number}"
            found.builder.failures[name] = ModelError("bad")
            await refusal(found.host.load(ModelSource("a", name)))
        assert len(found.host.statuses()) == 100
        await found.host.unload("m109")
        assert isinstance(await refusal(found.host.unload("m109")), NotFound)

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (ModelSource("../demo"), InvalidRequest),
        (ModelSource("s3://bucket/a"), InvalidRequest),
        (ModelSource("a", options={"dtype": "int5", "kv_dtype": "u9"}), InvalidRequest),
        (ModelSource("a", options={"port": "1"}), InvalidRequest),
        (ModelSource("x"), NotFound),
    ],
)
def test_sources_outside_the_store_are_refused_in_one_line(
    tmp_path: Path, source: ModelSource, kind: type[ServerError]
) -> None:
    async def scenario(found: Hosting) -> None:
        for work in (found.host.load(source), found.host.replace(source)):
            error = await refusal(work)
            assert type(error) is kind
            assert "\n" not in error.message
        if "kv_dtype" in source.options:
            assert error.message.count("must be") == 2, "every problem is told"
        assert (found.builder.started, states(found)) == ([], {})

    play(tmp_path, scenario)


def test_operations_are_refused_while_the_server_loads_or_drains(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "a")
        found.registry.drain()
        works = [found.host.load(ModelSource("b")), found.host.unload("a"), found.host.replace(ModelSource("a")),
                 found.host.sync([]), found.host.get_or_load("b").__aenter__()]  # fmt: skip
        for work in works:
            assert isinstance(await refusal(work), Unavailable)

    play(tmp_path, scenario)


# --- the end ----------------------------------------------------------------------------------------------------------


def test_closing_abandons_loads_and_stops_every_engine_once(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "a", "b")
        engines = [found.engine("a"), found.engine("b")]
        call = asyncio.create_task(answer(found.registry.find("b"), asyncio.Event()))
        await until(lambda: found.registry.find("b").admission.num_in_flight)
        unloading = asyncio.create_task(found.host.unload("b"))
        await until(lambda: states(found)["b"] == "unloading")
        found.builder.gates["c"] = asyncio.Event()
        loading = asyncio.create_task(found.host.load(ModelSource("c")))
        await until(lambda: "c" in found.builder.started)
        await found.host.close()
        assert found.builder.ended[-1] == "c"
        assert [engine.num_shutdowns for engine in engines] == [1, 1]
        assert isinstance(await refusal(call), Cancelled)
        await unloading
        with pytest.raises(asyncio.CancelledError):
            await loading

    play(tmp_path, scenario)
