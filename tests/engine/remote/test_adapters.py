"""Adapters that upstreams list: asked for by their names, of those that have them."""

from __future__ import annotations

import pytest

from dragoman.engine.remote import fleet
from dragoman.engine.remote.profile import Profile
from dragoman.engine.remote.wire import Ask, prompt_body
from dragoman.errors import Unavailable, UnsupportedFeature
from tests.contract.asking import run
from tests.engine.remote.asking import load, outputs, remote, request
from tests.support.fake_upstream import FakeUpstream, listening
from tests.support.patience import until


def test_an_adapter_is_asked_for_in_the_place_of_the_model() -> None:
    upstream = FakeUpstream(adapters={"sql": "m", "of another": "n"})

    async def test() -> None:
        async with remote(upstream) as engine:
            assert engine.capabilities.adapters == ("sql",)
            for name in (None, "sql"):
                await outputs(engine, request(adapter=name))
            assert [body["model"] for body in upstream.bodies] == ["m", "sql"]
            with pytest.raises(UnsupportedFeature, match="adapter of another"):
                await outputs(engine, request(adapter="of another"))

    run(test())


def test_the_log_probabilities_of_a_prompt_are_those_of_the_adapter() -> None:
    ask = Ask((1, 2), request(adapter="sql"), 1, 1)
    assert b'"model":"sql"' in prompt_body(ask, Profile("m"), 1)


def test_requests_go_to_the_servers_that_have_the_adapter() -> None:
    one, two = FakeUpstream(adapters={"sql": "m"}), FakeUpstream(adapters={"chat": "m"})

    async def test() -> None:
        async with remote(one, two) as engine:
            assert engine.capabilities.adapters == ("sql", "chat")
            for number in range(4):
                await outputs(engine, request(text=f"prompt {number}", adapter="chat"))
            assert (len(one.bodies), len(two.bodies)) == (0, 4)

    run(test())


def test_while_the_servers_that_have_it_are_away_the_request_may_be_tried_again() -> None:
    one, two = FakeUpstream(adapters={"sql": "m"}), FakeUpstream()

    async def test() -> None:
        async with remote(one, two) as engine:
            await one.stop()
            with pytest.raises(Unavailable):
                await outputs(engine, request(adapter="sql"))
            with pytest.raises(Unavailable, match="no upstream that answers has the adapter sql"):
                await outputs(engine, request(adapter="sql"))
            assert await outputs(engine, request())

    run(test())


def test_adapters_come_and_go_as_the_servers_list_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "CHECK_EVERY_S", 0.01)
    upstream = FakeUpstream()

    async def test() -> None:
        async with remote(upstream) as engine:
            assert engine.capabilities.adapters == ()
            upstream.adapters = {"sql": "m"}
            await until(lambda: engine.capabilities.adapters == ("sql",))
            assert await outputs(engine, request(adapter="sql"))
            upstream.adapters = {}
            await until(lambda: engine.capabilities.adapters == ())

    run(test())


def test_what_is_known_of_an_adapter_before_the_start_is_told() -> None:
    async def test() -> None:
        upstream = FakeUpstream(adapters={"sql": "m"})
        async with listening(upstream):
            assert (await load(upstream.url)).common.capabilities.adapters == ("sql",)

    run(test())
