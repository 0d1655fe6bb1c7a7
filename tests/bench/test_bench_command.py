"""`dragoman bench` from its words to its table, against servers on this machine that answer at once."""

from __future__ import annotations

import io
import json
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from dragoman.cli.bench import COMMAND
from dragoman.cli.subcommand import Console, run_command
from dragoman.errors import how_to_install
from dragoman.tools.bench.apis import APIS
from tests.bench.fake_server import (
    ANSWERS,
    OUTPUT_TOKENS,
    PIECES,
    PROMPT_TOKENS,
    Answer,
    FakeServer,
    chat,
    completions,
    listening,
    saying,
    speaking,
    sse,
)
from tests.support.tables import table

FEW = ("--requests", "6", "--concurrency", "2", "--seed", "1")


def bench(*words: str, **environ: str) -> tuple[int, str, str]:
    out, errors = io.StringIO(), io.StringIO()
    return run_command(COMMAND, words, Console(environ, out, errors)), out.getvalue(), errors.getvalue()


def report_of(server: FakeServer, tmp_path: Path, *words: str, **environ: str) -> dict[str, Any]:
    """What the command writes as JSON; it must succeed."""
    path = tmp_path / "report.json"
    code, _, errors = bench(server.url, *words, "--json", str(path), **environ)
    assert code == 0, errors
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def measured(server: FakeServer, name: str) -> list[dict[str, Any]]:
    """The bodies of the requests that were sent to the API, without those that warmed up and counted words."""
    return [asked.body for asked in server.asked if asked.path == ANSWERS[name][0]]


@table("name", list(APIS))
def test_every_api_is_asked_in_its_form_and_its_answers_are_counted(name: str, tmp_path: Path) -> None:
    with listening(speaking(name)) as server:
        report = report_of(server, tmp_path, "--api", name, *FEW, "--output-tokens", "9")
    assert (report["api"], report["url"]) == (name, server.url + ANSWERS[name][0])
    (point,) = report["points"]
    found = point["measures"]
    assert (found["answered"], found["failed"], found["failures"]) == (6, 0, [])
    bodies = measured(server, name)[-6:]
    assert len({json.dumps(body) for body in bodies}) == 6  # no two prompts are alike
    if APIS[name].generates:
        assert all("9" in json.dumps(body) for body in bodies)
    if not APIS[name].generates:
        assert len(bodies[0]["input"] if name == "embeddings" else bodies[0]["documents"]) == 8
        assert (found["output_tokens"], found["prompt_tokens"]) == (0, PROMPT_TOKENS)
        assert found["total_tokens_per_s"] > 0
    elif name == "text-batch":
        assert (found["counted_by"], found["output_tokens"], found["time_to_first_token_s"]) == ("nobody", None, None)
        assert len(bodies[0]["prompts"]) == 8
    elif name == "text":
        assert (found["counted_by"], found["output_tokens"]) == ("pieces", len(PIECES))
    else:
        assert (found["counted_by"], found["output_tokens"]) == ("usage", OUTPUT_TOKENS)
        assert found["prompt_tokens"] == PROMPT_TOKENS
        first, whole = found["time_to_first_token_s"], found["latency_s"]
        assert 0 < first["mean"] <= whole["mean"]


@table(
    ("spoken", "path", "api"),
    [
        (("chat", "completions", "lmi"), "", "chat"),
        (("completions", "tgi"), "", "completions"),
        (("ovms",), "", "ovms"),
        (("chat", "ovms-completions"), "/v3", "ovms-completions"),
        (("tgi", "lmi"), "", "tgi"),
        (("ollama",), "", "ollama"),
        (("lmi", "text"), "", "lmi"),
        (("text",), "/", "text"),
        (("embeddings",), "", "embeddings"),
        (("rerank", "tgi"), "/v1", "rerank"),
        (("chat", "responses"), "/v1/responses", "responses"),
        (("text", "text-batch"), "/api/generate-batch", "text-batch"),
    ],
)
def test_what_a_url_speaks_is_found_out(spoken: tuple[str, ...], path: str, api: str) -> None:
    with listening(speaking(*spoken)) as server:
        code, out, errors = bench(server.url + path, *FEW)
    assert (code, errors) == (0, errors)
    assert out.startswith(f"{server.url}{ANSWERS[api][0]} (API {api}")


def test_a_sweep_has_a_point_for_each_load(tmp_path: Path) -> None:
    with listening(speaking("chat")) as server:
        report = report_of(
            server, tmp_path, "--concurrency", "1,2,4", "--requests", "4", "--warmup", "0", "--seed", "7"
        )
        prompts = [body["messages"][0]["content"] for body in measured(server, "chat")[-12:]]
        again = report_of(server, tmp_path, "--rate", "200,400.5", "--requests", "3")
    assert [(point["kind"], point["value"]) for point in report["points"]] == [("concurrency", n) for n in (1, 2, 4)]
    assert [point["measures"]["answered"] for point in report["points"]] == [4, 4, 4]
    assert len(set(prompts)) == 12  # the cache of prefixes does not make a later point quicker
    assert [(point["kind"], point["value"]) for point in again["points"]] == [("rate", 200.0), ("rate", 400.5)]
    assert report["seed"] == 7


def test_the_same_seed_asks_the_same(tmp_path: Path) -> None:
    asked = []
    for seed in ("5", "5", "6"):
        with listening(speaking("completions")) as server:
            words = ("--seed", seed, "--requests", "4", "--prompt-tokens", "10-50", "--output-tokens", "1-99")
            report_of(server, tmp_path, "--api", "completions", *words)
            asked.append(measured(server, "completions"))
    assert asked[0] == asked[1] != asked[2]
    assert len({body["max_tokens"] for body in asked[0][-4:]}) > 1


def test_prompts_have_the_tokens_that_the_server_counts(tmp_path: Path) -> None:
    def answer(asked: Any) -> Answer:
        tokens = 2 * len(asked.body["prompt"].split()) + 10
        return Answer(sse({"choices": [{"text": "a", "finish_reason": "stop"}], "usage": {"prompt_tokens": tokens}}))

    with listening(FakeServer(answer)) as server:
        words = ("--api", "completions", "--model", "m", "--prompt-tokens", "50", *FEW)
        report = report_of(server, tmp_path, *words)
    assert report["tokens_per_word"] == 2.0
    assert report["points"][0]["measures"]["prompt_tokens"] == 50.0


def test_keys_and_headers_are_sent_and_keys_are_never_told(tmp_path: Path) -> None:
    headers = ("--header", "X-Team: blue", "--header=X-Empty:")
    for words, environ, key in [
        (("--api-key", "secret-1"), {}, "secret-1"),
        (("--api-key-env", "MY_KEY"), {"MY_KEY": "secret-2"}, "secret-2"),
        ((), {"DRAGOMAN_API_KEY": "secret-3"}, "secret-3"),
    ]:
        with listening(speaking("chat")) as server:
            code, out, errors = bench(server.url, *FEW, *words, *headers, **environ)
        assert code == 0
        assert {asked.headers["authorization"] for asked in server.asked} == {f"Bearer {key}"}
        assert {(asked.headers["x-team"], asked.headers["x-empty"]) for asked in server.asked} == {("blue", "")}
        assert "secret" not in out + errors


def test_fields_are_laid_over_each_body() -> None:
    more = '{"temperature": 0.7, "stream_options": null, "nvext": {"a": 1}}'
    with listening(speaking("chat")) as server:
        assert bench(server.url, *FEW, "--body", more, "--ignore-eos", "--model", "mine")[0] == 0
    body = server.asked[-1].body
    assert (body["temperature"], body["nvext"], body["ignore_eos"], body["model"]) == (0.7, {"a": 1}, True, "mine")
    assert "stream_options" not in body


def test_prompts_of_a_file_are_asked(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "First", "max_tokens": 3}\n{"prompt": "Second"}\n', encoding="utf-8")
    with listening(speaking("completions")) as server:
        words = ("--prompts", str(path), "--requests", "4", "--warmup", "0", "--output-tokens", "8")
        assert bench(f"{server.url}/v1/completions", *words)[0] == 0
    asked = [(body["prompt"], body["max_tokens"]) for body in measured(server, "completions")]
    assert asked == [("First", 3), ("Second", 8)] * 2


ALLOWED = "http://HOST:PORT or https://HOST, perhaps with a path, without a user and a query"
NUMBERS = "numbers above 0, separated by commas, none of them twice"
TOKENS = "a number of tokens above 0, or a range such as 64-256"
PLACE = "a file in an existing directory"
VARIABLE = "a variable of the environment that holds the key"
BOUNDS = "NAME=SECONDS separated by commas, names of ttft, tpot, itl, e2e, none of them twice"

FULL = Answer([b'{"error": {"message": "the queue is full"}}'], 503)
CUT = Answer(completions()[:2], is_cut=True)


@pytest.mark.parametrize(
    ("failing", "told"),
    [
        (FULL, "2 x HTTP 503: the queue is full"),
        (CUT, "2 x broken off: the connection was closed before the answer's end"),
        (Answer(completions()[:2]), "2 x broken off: the answer ended without the mark that ends one"),
        (Answer(sse({"error": {"message": "out of luck"}})), "2 x error in the answer: out of luck"),
        (Answer(completions([])), "2 x empty answer: the answer held no output"),
    ],
)
def test_failures_are_counted_and_named_beside_what_was_answered(failing: Answer, told: str, tmp_path: Path) -> None:
    good = Answer(completions())
    # Two requests count words, one warms up, then every second of four fails.
    with listening(saying(good, good, good, failing, good, failing, good)) as server:
        words = ("--api", "completions", "--requests", "4", "--concurrency", "1", "--slo", "ttft=100")
        code, out, _ = bench(server.url, *words)
    assert code == 0
    assert f"concurrency 1: {told}" in out.splitlines()
    row = next(line.split() for line in out.splitlines() if line.startswith("concurrency 1"))
    assert row[2:4] == ["2", "2"]
    assert row[-1] == "50%"


def test_a_connection_that_the_server_closed_between_requests_is_no_failure(tmp_path: Path) -> None:
    with listening(saying(Answer(completions(), closes=True))) as server:
        report = report_of(server, tmp_path, "--api", "completions", *FEW)
    (point,) = report["points"]
    assert (point["measures"]["answered"], point["measures"]["failed"]) == (6, 0)
    # Where the client sees the end in time it opens another one by itself.
    assert 0 <= point["resent"] <= 6


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[tuple[FakeServer, Path]]:
    """A server that speaks TLS, and the file of who vouches for it."""
    authority, path = trustme.CA(), tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(path))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with listening(speaking("chat"), context) as server:
        yield server, path


def test_tls_is_spoken_with_who_is_trusted(
    secured: tuple[FakeServer, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, authority = secured
    code, out, errors = bench(server.url, *FEW)
    assert (code, out) == (1, "")
    assert errors.startswith(f"dragoman: {server.url}/v1/models: TLS: ")
    assert len(errors.splitlines()) == 1
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    assert report_of(server, tmp_path, *FEW)["points"][0]["measures"]["answered"] == 6


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (FULL, "HTTP 503: the queue is full"),
        (Answer([b'{"error": {"message": "who are you?"}}'], 401), "HTTP 401: who are you?"),
        (CUT, "broken off: the connection was closed before the answer's end"),
    ],
)
def test_a_server_that_answers_nothing_is_one_line(answer: Answer, told: str) -> None:
    with listening(saying(answer)) as server:
        code, out, errors = bench(server.url, "--api", "completions", *FEW)
    assert (code, out) == (1, "")
    assert errors == f"dragoman: {server.url}/v1/completions: {told}\n"


def test_without_warm_up_the_table_tells_that_nothing_was_answered() -> None:
    with listening(saying(FULL)) as server:
        code, out, _ = bench(server.url, "--api", "completions", *FEW, "--warmup", "0")
    assert code == 1
    assert "concurrency 2: 6 x HTTP 503: the queue is full" in out


def test_a_port_where_nobody_listens_is_one_line() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        code, out, errors = bench(url, *FEW)
        assert (code, out) == (1, "")
        assert errors.startswith(f"dragoman: {url}/v1/models: connection refused: ")
        assert len(errors.splitlines()) == 1


def test_a_server_of_something_else_is_one_line() -> None:
    with listening(FakeServer(lambda asked: None)) as server:
        code, out, errors = bench(server.url, *FEW)
        assert (code, out) == (1, "")
        tried = "chat, completions, ovms, ovms-completions, embeddings, rerank, tgi, ollama, lmi, text"
        assert errors == (
            f"dragoman: {server.url}: answers none of the APIs {tried} (none of their paths is there); "
            "--api names another one\n"
        )
        assert bench(server.url, *FEW, "--api", "chat")[2] == (
            f"dragoman: --model: is required: {server.url} does not list its models\n"
        )


def test_what_is_no_http_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"SSH-2.0-x\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        code, _, errors = bench(f"http://127.0.0.1:{listener.getsockname()[1]}", *FEW)
        thread.join()
    assert code == 1
    assert "/v1/models: not HTTP: " in errors
    assert len(errors.splitlines()) == 1


def test_an_answer_that_takes_too_long_is_a_timeout() -> None:
    is_over = threading.Event()

    def slow(asked: Any) -> Answer:
        is_over.wait(60)
        return Answer(completions())

    with listening(FakeServer(slow)) as server:
        words = ("--api", "completions", "--model", "m", "--timeout", "0.05", *FEW)
        code, _, errors = bench(server.url, *words)
        is_over.set()
    assert code == 1
    assert errors == f"dragoman: {server.url}/v1/completions: timeout: no answer in time\n"


@table(
    ("words", "problem"),
    [
        ((), "URL: is needed, as in http://127.0.0.1:8080"),
        (("http://h", "http://i"), "http://i (command line): unexpected; one URL may be given"),
        (("ftp://h:8080",), f"ftp://h:8080 (command line): must be {ALLOWED}"),
        (("http://h", "--concurency=3"), "--concurency (command line): unknown option; the nearest one is --concurrency"),
        (("--concurrency=0",), f"--concurrency=0 (command line): must be whole {NUMBERS}"),
        (("--rate=1,1",), f"--rate=1,1 (command line): must be {NUMBERS}"),
        (("--rate=1", "--concurrency=1"), "--rate=1 (command line): must not be given with --concurrency"),
        (("--prompt-tokens=9-3",), f"--prompt-tokens=9-3 (command line): must be {TOKENS}"),
        (("--shared-prefix=128",), "--shared-prefix=128 (command line): must be less than --prompt-tokens (128)"),
        (("--slo=p99=1",), f"--slo=p99=1 (command line): must be {BOUNDS}"),
        (("--header=x",), "--header=x (command line): must be NAME: VALUE"),
        (("--plot=a.gif",), "--plot=a.gif (command line): must end in one of .png, .svg, .pdf"),
        (("--json=/no/a.json",), f"--json=/no/a.json (command line): must be {PLACE}, /no does not exist"),
        (("--api-key-env=NOPE",), f"--api-key-env=NOPE (command line): must be {VARIABLE}"),
        (("--api-key=k", "--api-key-env=NOPE"), "--api-key=... (command line): must not be given with --api-key-env"),
        (("--body=[1]",), '--body=[1] (command line): must be a JSON object, such as {"temperature": 0.7}'),
        (("--prompts=/no/where",), "--prompts=/no/where (command line): cannot be read: No such file or directory"),
    ],
)  # fmt: skip
def test_every_wrong_option_is_a_line_that_says_what_is_allowed(words: tuple[str, ...], problem: str) -> None:
    url = () if not words or not words[0].startswith("--") else ("http://h",)
    code, out, errors = bench(*url, *words)
    assert (code, out) == (2, "")
    assert errors == f"dragoman: {problem}\n"


def test_what_an_api_cannot_do_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "conversations.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "Hi"}]}\n', encoding="utf-8")
    with listening(speaking("tgi")) as server:
        url = f"{server.url}/generate_stream"
        assert bench(url, "--ignore-eos")[::2] == (
            1,
            "dragoman: --ignore-eos: API tgi has no such parameter; leave it out (answers may then be shorter)\n",
        )
        assert bench(url, "--prompts", str(path))[::2] == (
            1,
            "dragoman: --prompts: API tgi takes texts, but the file holds conversations\n",
        )
        assert server.asked == []


def test_a_plot_without_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, errors = bench("http://127.0.0.1:1", "--plot", "out.png")
    assert (code, errors) == (
        2,
        f"dragoman: --plot=out.png (command line): needs matplotlib: {how_to_install('bench')}\n",
    )


def test_a_plot_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "out.png"
    with listening(speaking("chat", "text-batch")) as server:
        assert bench(server.url, "--concurrency", "1,2", "--requests", "4", "--plot", str(path))[0] == 0
        assert path.read_bytes().startswith(b"\x89PNG")
        path.unlink()
        words = ("--api", "text-batch", "--requests", "2", "--plot", str(path))
        assert bench(server.url, *words)[0] == 0  # no first token, no tokens
    assert path.read_bytes().startswith(b"\x89PNG")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_and_other_streams_a_line_for_each_point() -> None:
    with listening(speaking("chat")) as server:
        words = (server.url, "--concurrency", "1,2", "--requests", "4")
        terminal, out = Terminal(), io.StringIO()
        assert run_command(COMMAND, words, Console({}, out, terminal)) == 0
        plain = bench(*words)[2].splitlines()
    assert "concurrency 1 [" in terminal.getvalue()
    assert "[" + "#" * 24 + "] 100% 4 answered, 0 failed, 0 running" in terminal.getvalue()
    assert "\x1b" not in out.getvalue()
    assert [line.rpartition(" in ")[0] for line in plain] == [
        f"  concurrency {n}: 4 answered, 0 failed" for n in (1, 2)
    ]


INTERRUPTIBLE = """
import signal, sys
from dragoman.cli import main

signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs the tests in the background ignores it
sys.exit(main())
"""


def test_ctrl_c_prints_what_was_measured_so_far(tmp_path: Path) -> None:
    """The first requests are answered, later ones never: whoever interrupts sees what there was."""
    is_stuck, is_over = threading.Event(), threading.Event()

    def answer(asked: Any) -> Answer:
        if sum(one.body["max_tokens"] == 5 for one in server.asked) > 4:  # the warm-up and three that are measured
            is_stuck.set()
            is_over.wait(60)
        return Answer(chat())

    report = tmp_path / "report.json"
    with listening(FakeServer(answer, {"/v1/models": {"data": [{"id": "fake"}]}})) as server:
        words = [server.url, "--api", "chat", "--output-tokens", "5", "--concurrency", "1,2", "--json", str(report)]
        command = [sys.executable, "-c", INTERRUPTIBLE, "bench", *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert is_stuck.wait(60)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
        is_over.set()
    assert process.returncode == 130, errors
    assert "concurrency 1: interrupted, with 1 requests under way that are not counted" in out
    assert "Traceback" not in errors
    (point,) = json.loads(report.read_text(encoding="utf-8"))["points"]
    assert (point["measures"]["answered"], point["measures"]["unfinished"], point["is_complete"]) == (3, 1, False)


def test_help_lists_every_api_and_every_option() -> None:

    code, out, _ = bench("--help")
    assert code == 0
    assert [option.flag for option in COMMAND.options if f"  {option.flag} " not in out] == []
    assert [api.path for api in APIS.values() if f"{api.name} " not in out or api.path not in out] == []
