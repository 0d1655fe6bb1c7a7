"""Handlers that generate with the served model."""

from __future__ import annotations

import json
from pathlib import Path

from tests.hooks.handling import handling, post
from tests.support.fake_service import Gate, Script
from tests.support.running_server import post_bytes
from tests.support.tables import table


def test_a_handler_can_generate(tmp_path: Path) -> None:
    source = """
    def handle(inputs):
        if inputs.is_empty():
            assert inputs.model is None
            return None
        body = inputs.get_as_json()
        if body.get("live"):
            return Output().add_stream_content(inputs.model.stream(body["ask"]))
        return Output().add({"mine": inputs.model.generate(body["ask"])})
    """
    ask = {"inputs": "hi", "parameters": {"max_new_tokens": 3}}
    with handling(tmp_path, source) as (server, _):
        assert post(server, {"ask": ask}).json() == {"mine": {"generated_text": " Deep learning is"}}
        both = post(server, {"ask": {**ask, "inputs": ["hi", "ho"]}}).json()["mine"]
        assert [one["generated_text"] for one in both] == [" Deep learning is"] * 2
        lines = post(server, {"ask": ask, "live": True}).text.splitlines()
        assert "".join(json.loads(line)["outputs"] for line in lines) == " Deep learning is"
        wrong = post(server, {"ask": {"inputs": "hi", "parameters": {"top_p": 7}}})
        assert (wrong.status_code, "top_p" in wrong.json()["error"]) == (424, True)


@table("live", [True, False])
def test_a_client_that_leaves_ends_what_its_handler_generates(tmp_path: Path, live: bool) -> None:
    source = """
    def handle(inputs):
        if not inputs.is_empty():
            body = inputs.get_as_json()
            if body["live"]:
                return Output().add_stream_content(inputs.model.stream(body))
            return Output().add(inputs.model.generate(body))
    """
    gate = Gate()
    with handling(tmp_path, source) as (server, _):
        server.service.scripts["hi"] = Script(gates={1: gate})
        body = {"inputs": "hi", "parameters": {"max_new_tokens": 3}, "live": live}
        with server.connect() as client:
            client.sendall(post_bytes("/invocations", json.dumps(body).encode()))
            server.service.journal.wait_for(lambda lines: any(line.startswith("pause") for line in lines))
        server.service.journal.wait_for(lambda lines: any(line.startswith("abort") for line in lines))
        gate.open()
