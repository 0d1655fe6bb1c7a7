"""`dragoman chat` in tmux, with a scripted server and with the bundled model."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.scripted_chat_server import HANG, ScriptedChatServer, said, scripted_chat_server
from tests.support.tiers import width
from tests.support.tmux import HAS_TMUX, Pane, terminal

pytestmark = [pytest.mark.skipif(not HAS_TMUX, reason="tmux is not installed")]

PNG = b"\x89PNG\r\n\x1a\n and so on"
READY = "/help lists the commands"


@pytest.fixture
def server() -> Iterator[ScriptedChatServer]:
    with scripted_chat_server() as running:
        yield running


@contextmanager
def chat(tmp_path: Path, *words: str, has_extra: bool = True) -> Iterator[Pane]:
    """A chat that waits for input, with `tmp_path` as its home. Without the extra prompt_toolkit cannot be imported."""
    environ = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    if not has_extra:
        hidden = tmp_path / "hidden" / "prompt_toolkit"
        hidden.mkdir(parents=True, exist_ok=True)
        (hidden / "__init__.py").write_text("raise ImportError", encoding="utf-8")
        environ["PYTHONPATH"] = str(hidden.parent)
    with terminal([sys.executable, "-m", "dragoman", "chat", *words], environ) as pane:
        pane.wait_for(READY)
        yield pane


def last_messages(server: ScriptedChatServer) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in server.bodies[-1]["messages"]]


def test_a_conversation_with_commands(server: ScriptedChatServer, tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(PNG)
    server.answers += [said("Good", " day."), said("Once."), said("Twice."), said("A cat."), said("Anew.")]
    with chat(tmp_path, server.url) as pane:
        pane.enter("Hello")
        pane.wait_for("Good day.")
        pane.enter("/stats")
        pane.wait_for("2 tokens, behind 5 prompt tokens", "the first after ")
        pane.enter("/system Be brief.")
        pane.wait_for("system: Be brief.")
        pane.enter("/set top_p 2")
        pane.wait_for("/set top_p=2: must be a number >= 0 and <= 1")
        pane.enter("/set top_q 1")
        pane.wait_for("/set top_q: unknown parameter; must be one of temperature, top_p")
        pane.enter("/set top_p 0.5")
        pane.wait_for("top_p = 0.5 (")
        pane.enter("/model third")
        pane.wait_for("/model third: must be one of first, second")
        pane.enter("/model second")
        pane.wait_for(f"second, {server.url}; there are also first")
        pane.enter("And then?")
        pane.wait_for("Once.")
        pane.enter("/retry")
        pane.wait_for("Twice.")
        assert last_messages(server) == [
            ("system", "Be brief."), ("user", "Hello"), ("assistant", "Good day."), ("user", "And then?"),
        ]  # fmt: skip
        assert (server.bodies[-1]["model"], server.bodies[-1]["top_p"]) == ("second", 0.5)
        pane.enter(f"/save {tmp_path}/kept.json")
        pane.wait_for(f"5 messages are in {tmp_path}/kept.json")
        pane.enter("/clear")
        pane.wait_for("the conversation begins anew")
        pane.enter(f"/image {tmp_path}/cat.png")
        pane.wait_for(f"with the next message: {tmp_path}/cat.png")
        pane.enter("What is it?")
        pane.wait_for("A cat.")
        (_, message) = server.bodies[-1]["messages"]
        url = "data:image/png;base64," + base64.b64encode(PNG).decode()
        assert [part["type"] for part in message["content"]] == ["image_url", "text"]
        assert message["content"][0]["image_url"]["url"] == url
        pane.enter(f"/load {tmp_path}/kept.json")
        pane.wait_for("goes on behind the 5 messages")
        pane.enter("//etc?")
        pane.wait_for("Anew.")
        assert last_messages(server)[3:] == [("user", "And then?"), ("assistant", "Twice."), ("user", "/etc?")]
        pane.enter("/nothing")
        pane.wait_for("/nothing: unknown command; must be one of /help,")
        pane.enter("/exit")
        assert pane.wait_for_end() == 0


@pytest.mark.parametrize("has_extra", [True, False])
def test_several_lines_are_one_message(has_extra: bool, server: ScriptedChatServer, tmp_path: Path) -> None:
    server.answers += [said("First."), said("Second."), said("Third.")]
    with chat(tmp_path, server.url, has_extra=has_extra) as pane:
        assert (".[terminal]" in pane.text()) != has_extra
        pane.enter("one\\")
        pane.enter("two", behind="...")
        pane.wait_for("First.")
        assert last_messages(server)[-1] == ("user", "one\ntwo")
        pane.enter('"""three')
        pane.enter("", behind="...")
        pane.wait_for("\n...", times=3)
        pane.enter('four"""', behind="...")
        pane.wait_for("Second.")
        assert last_messages(server)[-1] == ("user", "three\n\nfour")
        if has_extra:
            pane.wait_for_prompt()
            pane.type("five")
            pane.wait_for("> five")
            pane.press("Escape", "Enter")
            pane.enter("six", behind="...")
            pane.wait_for("Third.")
            assert last_messages(server)[-1] == ("user", "five\nsix")
        pane.wait_for_prompt()
        pane.press("C-d")
        assert pane.wait_for_end() == 0


@pytest.mark.parametrize("has_extra", [True, False])
def test_ctrl_c_stops_the_answer_and_then_the_chat(has_extra: bool, server: ScriptedChatServer, tmp_path: Path) -> None:
    server.answers += [[*said("It begins"), HANG], [HANG], said("Well.")]
    with chat(tmp_path, server.url, has_extra=has_extra) as pane:
        pane.enter("A story")
        pane.wait_for("It begins")
        pane.press("C-c")
        pane.wait_for("[stopped]")
        assert server.left.wait(30)  # the server has noticed, and works no more for it
        pane.enter("Another")  # stopped before anything came: it is as if it had not been said
        wait_for_calls(pane, server, 2)
        pane.press("C-c")
        pane.wait_for("[stopped]", times=2)
        pane.wait_for_prompt()
        pane.type("never sent")
        pane.wait_for("> never sent")
        pane.press("C-c")
        pane.enter("Go on")
        pane.wait_for("Well.")
        assert last_messages(server) == [("user", "A story"), ("assistant", "It begins"), ("user", "Go on")]
        pane.wait_for_prompt()
        pane.press("C-c")
        assert pane.wait_for_end() == 0


def wait_for_calls(pane: Pane, server: ScriptedChatServer, count: int) -> None:
    """Wait until the server has had this number of calls."""
    while len(server.bodies) < count:
        pane.text()


def test_reasoning_and_tool_calls_are_shown_and_answered(server: ScriptedChatServer, tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text("[{}]", encoding="utf-8")
    calls = [
        {"index": place, "id": f"c{place}", "function": {"name": "weather", "arguments": json.dumps({"city": city})}}
        for place, city in enumerate(["Rome", "Oslo"])
    ]
    server.answers += [
        [{"reasoning_content": "Let me"}, {"reasoning_content": " look."}, {"tool_calls": calls}],
        said("Rome is warmer. \x1b[31mred\x07"),
    ]
    with chat(tmp_path, server.url, "--tools", str(tmp_path / "tools.json")) as pane:
        pane.enter("Where is it warm?")
        pane.wait_for("Let me look.", 'tool call weather({"city": "Rome"})', 'tool call weather({"city": "Oslo"})')
        pane.wait_for_prompt("result of weather>")
        pane.enter("30 C")
        pane.wait_for("result of weather>", times=2)
        pane.enter("-5 C")
        pane.wait_for("Rome is warmer. \\x1b[31mred\\x07")  # what the model says does not control the terminal
        messages = server.bodies[-1]["messages"]
        assert [call["id"] for call in messages[1]["tool_calls"]] == ["c0", "c1"]
        assert messages[2:] == [
            {"role": "tool", "tool_call_id": "c0", "content": "30 C"},
            {"role": "tool", "tool_call_id": "c1", "content": "-5 C"},
        ]
        pane.wait_for_prompt()
        pane.press("C-d")
        assert pane.wait_for_end() == 0


def test_typed_lines_are_kept_for_the_next_time(server: ScriptedChatServer, tmp_path: Path) -> None:
    server.answers += [said("Yes."), said("Again."), said("No.")]
    kept = tmp_path / "state" / "dragoman" / "chat_history"
    with chat(tmp_path, server.url) as pane:
        pane.enter("a question")
        pane.wait_for("Yes.")
        pane.wait_for_prompt()
        pane.press("C-d")
        pane.wait_for_end()
    assert kept.stat().st_mode & 0o777 == 0o600
    before = kept.read_bytes()
    for has_extra in width((True, False), (True,)):
        with chat(tmp_path, server.url, has_extra=has_extra) as pane:
            pane.wait_for_prompt()
            pane.press("Up")
            pane.wait_for("> a question")
            pane.press("Enter")
            pane.wait_for("Again." if has_extra else "No.")
            pane.wait_for_prompt()
            pane.press("C-d")
            pane.wait_for_end()
    assert last_messages(server) == [("user", "a question")]
    with chat(tmp_path, server.url, "--no-history") as pane:
        pane.wait_for_prompt()
        pane.press("Up")
        pane.enter("/stats")
        pane.wait_for("nothing has been answered yet")
        pane.wait_for_prompt()
        pane.press("C-d")
        pane.wait_for_end()
    assert kept.read_bytes() == before  # the same entry is kept once; the last chat kept nothing


@pytest.mark.full("loads the bundled model; test_chat_messages.py chats with it, and the scripted server is stopped")
def test_the_bundled_model_answers_and_stops(tmp_path: Path) -> None:
    words = ("--dtype", "f32", "--temperature", "0", "--ignore-eos", "--max-tokens", "1900")
    with chat(tmp_path, *words) as pane:
        pane.enter("What is Deep Learning?")
        pane.wait_for("\nDeep learning is")
        pane.press("C-c")
        pane.wait_for("[stopped]")
        pane.enter("/set max_tokens 8")
        pane.wait_for("max_tokens = 8 (")
        pane.enter("/set ignore_eos default")
        pane.wait_for("ignore_eos = the server's default")
        pane.enter("/retry")
        pane.wait_for("\nDeep learning is", times=2)
        pane.enter("/stats")
        pane.wait_for("8 tokens, behind 16 prompt tokens", "tokens a second")
        pane.wait_for_prompt()
        pane.press("C-d")
        assert pane.wait_for_end() == 0
