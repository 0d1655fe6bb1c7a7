"""A batch over a sender that a test holds in its hand: how many run, what is repeated, what is left when it ends."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.batch.files import AnswerFile, BatchError, RequestIndex
from dragoman.batch.run import Answer, Batch, Tally, Unreachable, open_files
from tests.batch.files import asking, ids_of, read_answers, write_lines
from tests.support.tables import table

Reply = Callable[[str, int], Answer]
USAGE = {"prompt_tokens": 5, "completion_tokens": 2}


def good(prompt: str, num_before: int) -> Answer:
    """A good answer."""
    return Answer(200, {"x-request-id": f"r-{prompt}"}, json.dumps({"text": prompt, "usage": USAGE}).encode())


class FakeSender:
    """Answers by a function of the prompt and of how often it was asked before; while `gate` is closed, not at all."""

    def __init__(self, reply: Reply = good) -> None:
        self.reply = reply
        self.asked: Counter[str] = Counter()
        self.running = self.most_running = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Semaphore(0)

    async def send(self, path: str, body: bytes) -> Answer:
        prompt = str(json.loads(body)["prompt"])
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.arrived.release()
        try:
            await self.gate.wait()
            await asyncio.sleep(0)
            self.asked[prompt] += 1
            return self.reply(prompt, self.asked[prompt] - 1)
        finally:
            self.running -= 1


def requests(directory: Path, *ids: str) -> Path:
    return write_lines(directory / "in.jsonl", *[asking(one, prompt=one) for one in ids])


def run(
    directory: Path, sender: FakeSender, *, concurrency: int = 4, retries_errors: bool = False, patience_s: float = 60
) -> Tally:
    """A whole run over in.jsonl and out.jsonl."""

    async def whole() -> Tally:
        with AnswerFile(directory / "out.jsonl") as answers:
            files = open_files(directory / "in.jsonl", answers, retries_errors=retries_errors)
            return await Batch(files, sender, concurrency, lambda tally: None, patience_s).run()

    return asyncio.run(whole())


@pytest.fixture(autouse=True)
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.batch.run.FIRST_DELAY_S", 0.0)


def test_each_line_is_answered_in_its_own_line_with_what_its_api_said(tmp_path: Path) -> None:
    requests(tmp_path, "a", "b", "é")
    tally = run(tmp_path, FakeSender())
    found = {answer["custom_id"]: answer for answer in read_answers(tmp_path / "out.jsonl")}
    assert found.keys() == {"a", "b", "é"}
    assert found["é"]["response"] == {"status_code": 200, "request_id": "r-é", "body": {"text": "é", "usage": USAGE}}
    assert found["é"]["error"] is None
    assert len({answer["id"] for answer in found.values()}) == 3
    assert (tally.num_answered, tally.prompt_tokens, tally.completion_tokens, tally.has_errors) == (3, 15, 6, False)


def test_as_many_run_at_once_as_are_asked_for(tmp_path: Path) -> None:
    async def first_wave(sender: FakeSender) -> int:
        sender.gate.clear()
        with AnswerFile(tmp_path / "out.jsonl") as answers:
            files = open_files(tmp_path / "in.jsonl", answers, retries_errors=False)
            running = asyncio.create_task(Batch(files, sender, 5, lambda tally: None).run())
            for _ in range(5):
                await sender.arrived.acquire()
            before = sender.running
            sender.gate.set()
            await running
        return before

    requests(tmp_path, *map(str, range(20)))

    async def made() -> tuple[int, int]:
        sender = FakeSender()
        return await first_wave(sender), sender.most_running

    assert asyncio.run(made()) == (5, 5)


def test_what_is_answered_is_not_asked_again(tmp_path: Path) -> None:
    requests(tmp_path, "a", "b", "c")
    run(tmp_path, FakeSender())
    requests(tmp_path, "a", "new", "b", "c")
    second = FakeSender()
    tally = run(tmp_path, second)
    assert dict(second.asked) == {"new": 1}
    assert (tally.num_before, tally.num_answered) == (3, 1)
    assert ids_of(tmp_path / "out.jsonl") == ["a", "b", "c", "new"]


@pytest.mark.parametrize("torn", [b'{"id":"batch_req_1","custom_id":"c","respon', b'{"id":"ba', b"\0\0\0\0"])
def test_a_torn_last_line_is_mended_and_its_request_asked_again(tmp_path: Path, torn: bytes) -> None:
    requests(tmp_path, "a", "b")
    run(tmp_path, FakeSender())
    requests(tmp_path, "a", "b", "c")
    out = tmp_path / "out.jsonl"
    out.write_bytes(out.read_bytes() + torn)
    run(tmp_path, FakeSender())
    assert ids_of(out) == ["a", "b", "c"]


def test_a_last_line_that_lacks_only_its_end_is_kept(tmp_path: Path) -> None:
    requests(tmp_path, "a", "b")
    run(tmp_path, FakeSender())
    out = tmp_path / "out.jsonl"
    out.write_bytes(out.read_bytes().rstrip(b"\n"))
    again = FakeSender()
    run(tmp_path, again)
    assert not again.asked
    assert ids_of(out) == ["a", "b"]


def test_errors_stay_unless_they_are_to_be_tried_again_and_then_take_their_own_place(tmp_path: Path) -> None:
    def broken(prompt: str, num_before: int) -> Answer:
        return Answer(500, {}, b'{"error": {"message": "broken"}}') if prompt == "b" else good(prompt, num_before)

    requests(tmp_path, "a", "b", "c")
    (tmp_path / "elsewhere").touch()
    (tmp_path / "out.jsonl").symlink_to(tmp_path / "elsewhere")
    assert run(tmp_path, FakeSender(broken)).num_errors == 1
    idle = FakeSender()
    assert run(tmp_path, idle).has_errors
    assert not idle.asked
    again = FakeSender()
    tally = run(tmp_path, again, retries_errors=True)
    assert dict(again.asked) == {"b": 1}
    assert not tally.has_errors
    assert ids_of(tmp_path / "out.jsonl") == ["a", "b", "c"]
    assert {one["response"]["status_code"] for one in read_answers(tmp_path / "out.jsonl")} == {200}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "in.jsonl", "out.jsonl"]
    assert (tmp_path / "out.jsonl").is_symlink()


@pytest.mark.parametrize("status", [429, 503])
def test_what_a_busy_server_does_not_take_is_asked_again(tmp_path: Path, status: int) -> None:
    def busy(prompt: str, num_before: int) -> Answer:
        return good(prompt, 0) if num_before >= 3 else Answer(status, {"retry-after": "0"}, b"{}")

    requests(tmp_path, "a", "b")
    sender = FakeSender(busy)
    assert run(tmp_path, sender).num_answered == 2
    assert dict(sender.asked) == {"a": 4, "b": 4}


def test_a_server_that_stays_busy_is_its_own_answer(tmp_path: Path) -> None:
    requests(tmp_path, "a")
    tally = run(tmp_path, FakeSender(lambda prompt, num_before: Answer(503, {}, b"too busy")))
    [answer] = read_answers(tmp_path / "out.jsonl")
    assert (answer["response"]["status_code"], answer["response"]["body"]) == (503, "too busy")
    assert tally.num_errors == 1


def test_a_server_that_comes_back_is_asked_again_and_one_that_does_not_ends_the_batch(tmp_path: Path) -> None:
    def away(prompt: str, num_before: int) -> Answer:
        if num_before < 2:
            raise Unreachable("nobody there")
        return good(prompt, 0)

    def gone(prompt: str, num_before: int) -> Answer:
        if prompt == "b":
            raise Unreachable("nobody there")
        return good(prompt, 0)

    requests(tmp_path, "a")
    assert run(tmp_path, FakeSender(away)).num_answered == 1
    requests(tmp_path, "a", "b", "c")
    with pytest.raises(BatchError, match="nobody there; gave up after 0 s"):
        run(tmp_path, FakeSender(gone), concurrency=1, patience_s=0)
    assert ids_of(tmp_path / "out.jsonl") == ["a"], "nothing was written for what was not answered"
    run(tmp_path, FakeSender())
    assert ids_of(tmp_path / "out.jsonl") == ["a", "b", "c"]


def test_a_batch_that_is_cancelled_leaves_what_it_has_and_ends_what_runs(tmp_path: Path) -> None:
    requests(tmp_path, *"abcdef")

    async def cut() -> FakeSender:
        sender = FakeSender()
        with AnswerFile(tmp_path / "out.jsonl") as answers:
            files = open_files(tmp_path / "in.jsonl", answers, retries_errors=False)
            seen: list[int] = []

            def close_after_two(tally: Tally) -> None:
                seen.append(tally.num_done)
                if tally.num_done == 2:
                    sender.gate.clear()
                    running.cancel()

            running = asyncio.create_task(Batch(files, sender, 2, close_after_two).run())
            with pytest.raises(asyncio.CancelledError):
                await running
        return sender

    assert asyncio.run(cut()).running == 0
    assert len(read_answers(tmp_path / "out.jsonl")) == 2
    run(tmp_path, FakeSender())
    assert ids_of(tmp_path / "out.jsonl") == list("abcdef")


def test_a_body_that_is_no_json_and_one_of_several_lines_stand_in_one_line(tmp_path: Path) -> None:
    bodies = {"a": b"<html>\nbad gateway\n</html>", "b": b'{\n  "text": "x\\ny"\n}', "c": b"\xff"}
    requests(tmp_path, *bodies)
    run(tmp_path, FakeSender(lambda prompt, _: Answer(200, {}, bodies[prompt])))
    found = {one["custom_id"]: one["response"]["body"] for one in read_answers(tmp_path / "out.jsonl")}
    assert found == {"a": "<html>\nbad gateway\n</html>", "b": {"text": "x\ny"}, "c": "\ufffd"}


BAD = [
    (b"not json", None, "invalid_json_line", "line 1: must be a JSON object with custom_id, method, url and body: "),
    (b"[1]", None, "invalid_json_line", "line 1: must be a JSON object with custom_id, method, url and body: "),
    (b"\xff\xfe{}", None, "invalid_json_line", "line 1: must be a JSON object"),
    ({"method": "POST"}, None, "invalid_request", "line 1: custom_id is missing: must be a text that is not empty"),
    (asking("x") | {"custom_id": 7}, None, "invalid_request", "line 1: custom_id 7: must be a text that is not empty"),
    (asking("x") | {"method": "GET"}, "x", "invalid_request", 'line 1: method "GET": must be "POST"'),
    (asking("x", "/v1/models"), "x", "invalid_request", 'line 1: url "/v1/models": must be one of /v1/chat/completions, '),
    (asking("x") | {"body": "text"}, "x", "invalid_request", 'line 1: body "text": must be an object'),
    (asking("x", stream=True), "x", "invalid_request", "line 1: body.stream true: must be false or left out"),
]  # fmt: skip


@table(("line", "custom_id", "code", "message"), BAD, ids=[case[3][8:45] for case in BAD])
def test_a_bad_line_is_answered_with_what_is_wrong_and_only_once(
    tmp_path: Path, line: object, custom_id: str | None, code: str, message: str
) -> None:
    write_lines(tmp_path / "in.jsonl", line, "", asking("good", prompt="good"))
    tally = run(tmp_path, FakeSender())
    assert (tally.num_lines, tally.num_bad, tally.num_answered) == (2, 1, 1)
    [error] = [answer for answer in read_answers(tmp_path / "out.jsonl") if answer["error"]]
    assert (error["custom_id"], error["response"]) == (custom_id, None)
    assert (error["error"]["code"], error["error"]["line"]) == (code, 1)
    assert error["error"]["message"].startswith(message)
    assert "\n" not in error["error"]["message"]
    again = FakeSender()
    assert run(tmp_path, again).num_before == 2
    assert not again.asked


def test_a_custom_id_that_stands_there_twice_is_refused_by_name(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", asking("a"), "", asking("b"), asking("c"), asking("b"), asking("a"))
    with pytest.raises(BatchError, match=r'in\.jsonl line 5: custom_id "b" stands on line 3 already; must be another'):
        run(tmp_path, FakeSender())
    assert (tmp_path / "out.jsonl").read_bytes() == b""


def test_answers_of_other_requests_are_not_touched(tmp_path: Path) -> None:
    requests(tmp_path, "a", "b")
    run(tmp_path, FakeSender())
    before = (tmp_path / "out.jsonl").read_bytes()
    requests(tmp_path, "a", "other")
    with pytest.raises(
        BatchError, match=r'out\.jsonl line \d: custom_id "b" is not in .*in\.jsonl; must be the answers of'
    ):
        run(tmp_path, FakeSender(), retries_errors=True)
    assert (tmp_path / "out.jsonl").read_bytes() == before


@pytest.mark.parametrize("content", [b"my diary", b"my diary\n", b'{"my": "diary"}\n'])
def test_a_file_that_holds_no_answers_is_not_touched(tmp_path: Path, content: bytes) -> None:
    requests(tmp_path, "a")
    (tmp_path / "out.jsonl").write_bytes(content)
    with pytest.raises(
        BatchError, match=r"out\.jsonl.*must be a file of a batch's answers, or one that does not exist yet"
    ):
        run(tmp_path, FakeSender())
    assert (tmp_path / "out.jsonl").read_bytes() == content


def test_two_batches_do_not_write_one_file(tmp_path: Path) -> None:
    requests(tmp_path, "a")
    with AnswerFile(tmp_path / "out.jsonl"), pytest.raises(BatchError, match="another batch is writing it"):
        run(tmp_path, FakeSender())


def test_millions_of_lines_take_little_memory(tmp_path: Path) -> None:
    """Of each line a digest, a place and a mark stay: lines and identifiers do not."""
    num_lines, long_id = 20_000, "i" * 400
    write_lines(tmp_path / "in.jsonl", *[asking(f"{long_id}{i}", prompt="p" * 400) for i in range(num_lines)])
    RequestIndex(tmp_path / "in.jsonl")  # what is imported and made once
    tracemalloc.start()
    try:
        index = RequestIndex(tmp_path / "in.jsonl")
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert index.num_left == num_lines
    assert kept < 48 * num_lines
    assert most < 128 * num_lines
