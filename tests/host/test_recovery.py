"""What is done about an engine that has died, how often, and what follows when that does not help."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dragoman.engine.base import DEATHS, Health
from dragoman.errors import Conflict
from dragoman.host import recovery
from dragoman.host.recovery import FailureAction, FailurePolicy
from dragoman.server.registry import ServerState
from tests.support.fake_models import FakeBuilt, Hosting, load, play, refusal
from tests.support.patience import until


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "LOOK_S", 0.001)
    monkeypatch.setattr(recovery, "LOOK_AGAIN_S", 0.001)
    monkeypatch.setattr(recovery, "FIRST_PAUSE_S", 0.001)


def built(found: Hosting, name: str) -> FakeBuilt:
    """The model that is served under the name."""
    model = found.host._hosted[name].built  # white box: nobody else sees the part that is renewed
    assert isinstance(model, FakeBuilt)
    return model


def policy(action: FailureAction = "restart", max_restarts: int = 3) -> dict[str, Any]:
    return {"policy": FailurePolicy(action, max_restarts, 3600.0)}


def test_a_dead_engine_is_renewed_and_nothing_else_is_touched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "a", "b")
        before = found.registry.find("a")
        found.engine("a").death = "out of luck"
        await until(lambda: not found.engine("a").death)
        await until(lambda: not found.host._operations)
        assert (built(found, "a").num_renewals, built(found, "b").num_renewals) == (1, 0)
        assert found.registry.progress_of("a") is None  # it is not being loaded any more
        assert found.registry.find("a") is before
        assert "the engine of model a has died: out of luck" in caplog.text
        assert "the engine of model a was restarted in" in caplog.text
        await found.host.unload("a")

    play(tmp_path, scenario)


def test_an_engine_that_reports_its_death_is_renewed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "LOOK_S", 3600.0)

    async def scenario(found: Hosting) -> None:
        await load(found, "a")
        found.engine("a").death = "out of luck"
        await asyncio.to_thread(DEATHS.tell)  # engines die on their own threads
        await until(lambda: not found.engine("a").death)

    play(tmp_path, scenario)


def test_an_attempt_that_fails_is_followed_by_another_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "a")
        found.engine("a").renewal_failures = [OSError("no file"), MemoryError()]
        found.engine("a").death = "out of luck"
        await until(lambda: not found.engine("a").death)
        assert built(found, "a").num_renewals == 3
        assert "OSError: no file" in caplog.text

    play(tmp_path, scenario)


def test_after_the_last_restart_the_model_stays_dead_until_a_load(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "a", "b")
        for _ in range(2):
            found.engine("a").death = "again"
            await until(lambda: not found.engine("a").death and not found.host._operations)
        found.engine("a").death = "again"
        await until(lambda: built(found, "a").given_up)
        assert "it was restarted 2 times within 3600 s" in built(found, "a").given_up
        assert "model a stays without an engine: again" in caplog.text
        await until(lambda: not found.host._operations)
        for _ in range(20):
            await asyncio.sleep(0.002)
        assert caplog.text.count("stays without an engine") == 1
        assert found.registry.state is ServerState.READY
        found.engine("b").death = "for the first time"
        await until(lambda: not found.engine("b").death)
        await found.host.unload("a")
        await load(found, "a")
        assert not found.engine("a").death

    play(tmp_path, scenario, **policy(max_restarts=2))


@pytest.mark.parametrize(("action", "num_renewals"), [("exit", 0), ("restart-then-exit", 1)])
def test_the_process_ends_if_the_policy_says_so(action: FailureAction, num_renewals: int, tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "a")
        for _ in range(num_renewals):
            found.engine("a").death = "again"
            await until(lambda: not found.engine("a").death and not found.host._operations)
        found.engine("a").death = "again"
        await found.registry.wait_given_up()
        assert built(found, "a").num_renewals == num_renewals
        assert found.registry.state is ServerState.FAILED
        assert "the engine of model a has died: again" in found.registry.reason

    play(tmp_path, scenario, **policy(action, 1))


def test_a_model_that_is_being_restarted_is_not_changed_meanwhile(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "a")
        held = asyncio.Event()
        engine = found.engine("a")

        async def renew(progress: object) -> None:
            await held.wait()
            engine.death = ""

        built(found, "a").renew = renew  # type: ignore[method-assign]
        engine.death = "out of luck"
        await until(lambda: "a" in found.host._operations)
        error = await refusal(found.host.unload("a"))
        assert isinstance(error, Conflict)
        assert "being restarted" in error.message
        held.set()
        await until(lambda: not found.host._operations)
        await found.host.unload("a")

    play(tmp_path, scenario)


def test_a_server_that_ends_waits_for_no_restart(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "a")

        async def renew(progress: object) -> None:
            await asyncio.Event().wait()

        built(found, "a").renew = renew  # type: ignore[method-assign]
        found.engine("a").death = "out of luck"
        await until(lambda: "a" in found.host._operations)
        await found.host.close()

    play(tmp_path, scenario)


def test_an_engine_that_recovers_by_itself_is_left_alone(tmp_path: Path) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "a", "b")
        found.engine("a").is_recovering = True
        found.engine("a").death = "no server answers"
        found.engine("b").death = "really"
        await until(lambda: not found.engine("b").death)
        assert built(found, "a").num_renewals == 0

    play(tmp_path, scenario)


def test_a_failing_health_check_does_not_stop_the_watch_of_other_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(found: Hosting) -> None:
        await load(found, "a", "b")

        def fail() -> Health:
            raise OSError("no answer")

        for name in ("a", "b"):
            with monkeypatch.context() as patch:
                patch.setattr(found.engine(name), "health", fail)
                await until(lambda: "the engines could not be looked at" in caplog.text)
            caplog.clear()
        found.engine("b").death = "out of luck"
        await until(lambda: not found.engine("b").death)

    play(tmp_path, scenario)
