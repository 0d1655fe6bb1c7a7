"""What docs/hooks.md shows as a model.py is one: each of its files is loaded as it stands there, and answers."""

from __future__ import annotations

import re
from pathlib import Path

import httpx

from dragoman.server.apis.lmi.hooks.loader import load_hooks
from dragoman.server.apis.lmi.hooks.threads import HookPool
from tests.hooks.handling import handling, post
from tests.hooks.hooked import hooked_dialects
from tests.support.patience import PATIENCE_S
from tests.support.running_server import running_server

PAGE = Path(__file__).resolve().parents[2] / "docs" / "hooks.md"
FORMATTERS, HANDLER, SERVICE = re.findall(
    r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)


def test_the_formatters_read_and_write(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(FORMATTERS, encoding="utf-8")
    hooks = load_hooks(None, [tmp_path])
    assert hooks is not None
    with running_server(dialects=hooked_dialects(hooks, HookPool(PATIENCE_S).run)) as server:
        answer = httpx.post(f"{server.url}/invocations", json={"question": "What is it?"}, timeout=PATIENCE_S)
        assert answer.status_code == 200
        assert answer.text.startswith(" Deep learning is")
        assert server.service.requests[-1].max_tokens == 64


def test_the_handler_answers_itself(tmp_path: Path) -> None:
    with handling(tmp_path, HANDLER) as (server, _):
        answer = post(server, {"inputs": "four"})
        assert (answer.status_code, answer.json(), answer.headers["X-Own"]) == (200, {"length": 4}, "1")


def test_the_service_of_lmi_generates(tmp_path: Path) -> None:
    with handling(tmp_path, SERVICE) as (server, _):
        answer = post(server, {"inputs": "Hello", "parameters": {"max_new_tokens": 4}})
        assert answer.status_code == 200
        assert answer.json()[0]["generated_text"].startswith(" Deep learning is")
