"""A chat template that runs away holds up nobody but its own request."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.tokenizer import template_process
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.tokenizer.template_environment import RenderLimits
from dragoman.tokenizer.template_process import end_idle
from dragoman.types import ChatPrompt
from tests.support.small_server import Parts, run, small_server

# A comparison that takes hours in one call, during which no other thread of its process runs.
RUNAWAY = """{% if messages[0].content == 'run away' %}{% set ns = namespace(a=1, b=1) %}{% for i in range(60) %}
{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}{% endif %}
{{- messages[0].content }}"""
HELLO = ChatPrompt(({"role": "user", "content": "hello"},))


def body(content: str, *, stream: bool) -> dict[str, object]:
    return {"model": "fake", "messages": [{"role": "user", "content": content}], "max_tokens": 2, "stream": stream}


def test_others_are_answered_meanwhile_and_it_is_refused_by_what_it_took() -> None:
    template = ChatTemplate(RUNAWAY, limits=RenderLimits(max_cpu_s=0.5))

    async def test() -> None:
        async with small_server(Parts(template=template)) as server:
            path, streams = "/v1/chat/completions", (False, True)
            hostile = [server.call(path, body("run away", stream=stream)) for stream in streams]
            await asyncio.sleep(0)
            for stream in streams:
                assert (await server.call(path, body("hello", stream=stream)).ended()).status == 200
            assert not any(call.messages for call in hostile), "they were not running any more"
            for call in hostile:
                await call.ended()
                assert call.status == 424
                assert json.loads(call.body)["error"] == (
                    "messages cannot be rendered by the model's chat template: it took more than 0.5 s or 512 MiB"
                )

    run(test)


def test_where_no_process_can_be_started_clients_are_asked_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate(RUNAWAY)
    failing = {
        ("/does/not/exist",): "no process can be started to render the chat template in (No such file",
        (sys.executable, "-c", "raise SystemExit(3)"): "the process that renders chat templates ended with code 3",
    }

    async def test() -> None:
        async with small_server(Parts(template=template)) as server:
            for command, words in failing.items():
                end_idle()
                monkeypatch.setattr(template_process, "_COMMAND", command)
                call = await server.call("/v1/chat/completions", body("hello", stream=False)).ended()
                assert call.status == 503
                assert words in call.body.decode()

    run(test)


def test_a_process_that_somebody_ended_is_replaced() -> None:
    template = ChatTemplate(RUNAWAY)
    for process in template_process._idle:
        os.kill(process._popen.pid, signal.SIGKILL)
    assert template.render(HELLO).endswith("hello")


FORKING = f"""
import os, sys
from dragoman.tokenizer import template_process
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.types import ChatPrompt

template = ChatTemplate({RUNAWAY!r})
prompt = ChatPrompt(({{"role": "user", "content": "hello"}},))
(process,) = template_process._idle
child = os.fork()
assert template.render(prompt).endswith("hello")
assert (process in template_process._idle) == bool(child), "a child must not talk to the process of its parent"
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(process._popen.pid, flush=True)
sys.stdin.read()
"""


def test_its_processes_end_with_the_server_however_that_ends_and_are_not_shared_by_forks() -> None:
    with subprocess.Popen([sys.executable, "-c", FORKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        renderer = int(server.stdout.readline())
        assert is_running(renderer)
        server.kill()
    for _ in range(1000):
        if not is_running(renderer):
            return
        os.sched_yield()
        signal.sigtimedwait([], 0.01)
    pytest.fail("the process is still there")


def is_running(pid: int) -> bool:
    """True until the process has ended, whether or not somebody has taken notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
