"""`dragoman plan` on the bundled demo model, as somebody runs it: a small calibration, a table, JSON, errors on one line."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from dragoman.cli import main, plan_run
from dragoman.cli.plan import COMMAND
from dragoman.cli.plan_run import served_model
from dragoman.config.resolve import demo_model_dir
from dragoman.tools.plan.calibrate import CalibrationFailed, Cases
from dragoman.tools.plan.costs import read_costs, write_costs
from tests.plan.replicas import COSTS, replica
from tests.plan.virtual_service import VirtualService
from tests.support.environment import forget_settings
from tests.support.hybrid_checkpoint import write_hybrid, write_stateful
from tests.support.server_process import started
from tests.support.tables import table
from tests.support.threads import children

ASKED = ("plan", "--rate", "5", "--prompt", "24", "--output", "8", "--requests", "20")
SMALL = ("--max-num-seqs", "4", "--max-batch-tokens", "32", "--kv-cache-gb", "0.01")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_settings(monkeypatch)


@pytest.fixture(scope="session")
def step_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The step log of a server that answered some requests."""
    service = VirtualService(replica(max_num_seqs=4, max_batch_tokens=32), COSTS)

    async def ask() -> None:
        await asyncio.gather(*(service.ask(8 + number, 6) for number in range(30)))

    asyncio.run(ask())
    path = tmp_path_factory.mktemp("plan") / "steps"
    path.write_bytes(b"".join(msgspec.json.encode(step) + b"\n" for step in service.steps) + b'{"begin_s": 1')
    return path


@pytest.fixture(scope="session")
def costs(step_log: Path) -> Path:
    """The costs that a first plan has taken from the log and kept."""
    path = step_log.with_name("costs.json")
    assert main([*ASKED, *SMALL, "--costs-from", str(step_log), "--costs", str(path)]) == 0
    return path


@pytest.fixture
def loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that starts a server fails."""
    monkeypatch.setattr(plan_run, "served_model", None)


@pytest.mark.full("measures a real server for seconds; test_calibrate.py measures simulated ones")
def test_a_plan_measures_a_server_over_http_and_keeps_the_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cases_of = Cases.of
    monkeypatch.setattr(Cases, "of", lambda *asked: replace(cases_of(*asked), clients_s=0.5))
    path = tmp_path / "costs.json"
    assert main([*ASKED, *SMALL, "--costs", str(path), "--json"]) == 0
    kept = read_costs(path)
    assert kept.model == "demo"
    assert (kept.tokens[0][0], kept.tokens[-1][0]) == (1, 32)
    assert len(kept.context_s) == 1
    assert kept.http_s > 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["alone_ttft_s"] > kept.http_s


def test_a_server_that_does_not_start_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--max-num-seqs", "none"]
    with pytest.raises(CalibrationFailed, match=r"ended with code [1-9]"), served_model(words, tmp_path / "steps"):
        raise AssertionError("it is no server")
    assert "dragoman: --max-num-seqs=none (command line): must be an integer" in capfd.readouterr().err


def test_a_plan_that_is_told_to_end_leaves_no_server() -> None:
    command = [sys.executable, "-m", "dragoman", *ASKED, *SMALL]
    loading = re.compile("building the graph|mapping weights")  # told by the server; a kept graph is not built
    with started(command, loading) as (process, _, _):
        (server,) = children(process.pid)
        process.terminate()
        assert process.wait(timeout=60) == 128 + signal.SIGTERM
        assert not Path(f"/proc/{server}").exists()


@pytest.mark.usefixtures("loads_nothing")
def test_kept_costs_give_a_table_without_the_model(costs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, *SMALL, "--costs", str(costs), "--ttft", "60"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    lines = captured.out.splitlines()
    assert lines[0] == "demo: 5 requests/s of 24 prompt and 8 completion tokens"
    titles = [line[2:28].strip() for line in lines if line.startswith("  ")]
    for title in (
        "cache of a token",
        "a prompt after a restart",
        "saturated",
        "utilisation",
        "time to first token",
        "time between tokens",
    ):
        assert title in titles
    assert any("within the bounds" in line for line in lines)


@pytest.mark.usefixtures("loads_nothing")
def test_a_plan_as_json_is_the_same_every_time(costs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*ASKED, *SMALL, "--costs", str(costs), "--disk-gb-s", "0.5", "--json"]
    assert main(words) == main(words) == 0
    first, second = capsys.readouterr().out.split("\n{\n")
    plan = json.loads(first)
    assert plan == json.loads("{" + second)
    facts = json.loads((demo_model_dir() / "config.json").read_text())
    assert plan["workload"]["prompt_tokens"] == 24
    assert plan["load"]["num_replicas"] >= 1
    assert 0 < plan["load"]["ttft_p50_s"] <= plan["load"]["ttft_p99_s"]
    assert plan["memory"]["kv_bytes_per_token"] >= 2 * facts["num_hidden_layers"] * facts["num_key_value_heads"]
    kept = plan["after_a_restart"]
    assert kept["kept_bytes"] >= 24 * plan["memory"]["kv_bytes_per_token"]
    assert (kept["read_s"], kept["computed_s"]) == (kept["kept_bytes"] / 5e8, plan["alone_ttft_s"])
    assert plan["memory"]["total_bytes"] == plan["memory"]["replica_bytes"] * plan["load"]["num_replicas"]


@pytest.mark.usefixtures("loads_nothing")
def test_costs_of_another_machine_need_not_name_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.json"
    write_costs(path, COSTS)
    words = [*ASKED, *SMALL, "--costs", str(path), "--replicas", "3", "--shared-prefix", "16", "--router", "prefix"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "3 replicas\n" in out
    assert "from the prefix cache" in out
    assert "all of them, with the router" in out


@pytest.mark.usefixtures("loads_nothing")
@pytest.mark.parametrize(
    ("write", "num_kinds"), [(write_hybrid, 1), (write_stateful, 2)], ids=["convolutions", "states"]
)
def test_models_with_other_layers_than_attention_are_planned(
    write: Callable[[Path], Path], num_kinds: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "costs.json"
    write_costs(path, msgspec.structs.replace(COSTS, context_s=(0.0,) * num_kinds, pair_s=(0.0,) * num_kinds))
    assert main([*ASKED, *SMALL[:4], str(write(tmp_path)), "--dtype", "f32", "--costs", str(path)]) == 0
    assert ("in layers with a window or a state" in capsys.readouterr().out) == (num_kinds == 2)


@pytest.mark.usefixtures("loads_nothing")
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "must be the step log of a server that has answered requests, but it holds no steps"),
        (b"no log\n", "must be a step log that can be read (JSON is malformed"),
        (None, "must be a step log that can be read ([Errno 2] No such file"),
    ],
)
def test_what_is_no_step_log_is_told_on_one_line(
    content: bytes | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "steps"
    if content is not None:
        path.write_bytes(content)
    (line,) = problems([*ASKED, *SMALL, "--costs-from", str(path)], capsys, 1)
    assert line.startswith(f"dragoman: --costs-from={path} (command line): {said}")


def problems(words: list[str], capsys: pytest.CaptureFixture[str], code: int) -> list[str]:
    assert main(words) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_costs_of_other_types_are_refused(costs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = problems([*ASKED, *SMALL, "--costs", str(costs), "--dtype", "f32"], capsys, 1)
    assert line.startswith(f"dragoman: --costs={costs} (command line): was measured for demo, with other files, types")


@pytest.mark.usefixtures("loads_nothing")
@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--ttft", "0.000001"), "--ttft=1e-06 (command line): cannot be met: a request alone takes"),
        (("--prompt", "100000"), "--prompt=100000 (command line): 100000 prompt and 8 completion tokens exceed"),
        (("--engine", "vllm"), "--engine=vllm (command line): must be rolling, whose scheduler is simulated"),
        (("--speculation", "lookup"), "--speculation=lookup (command line): must not be set: a plan does not simulate"),
    ],
)
def test_what_cannot_be_planned_is_told_on_one_line(
    more: tuple[str, ...], said: str, costs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = problems([*ASKED, *SMALL, "--costs", str(costs), *more], capsys, 1)
    assert line.startswith(f"dragoman: {said}")


@pytest.mark.usefixtures("loads_nothing")
def test_costs_are_not_measured_over_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = problems([*ASKED, *SMALL, "--tls-cert", str(tmp_path / "cert")], capsys, 1)
    assert line == (
        f"dragoman: --tls-cert={tmp_path / 'cert'} (command line): must not be set when costs are measured, since that "
        "uses plain HTTP"
    )


@pytest.mark.usefixtures("loads_nothing")
@pytest.mark.parametrize("content", [b"", b"[]", b'{"tokens": 1}'])
def test_a_file_that_holds_no_costs_is_told_on_one_line(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "costs.json"
    path.write_bytes(content)
    (line,) = problems([*ASKED, *SMALL, "--costs", str(path)], capsys, 1)
    assert line.startswith(f"dragoman: --costs={path} (command line): must be a JSON file of step costs")


@pytest.mark.usefixtures("loads_nothing")
def test_a_place_that_is_not_there_is_told_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "nowhere" / "costs.json"
    (line,) = problems([*ASKED, *SMALL, "--costs", str(path)], capsys, 1)
    assert line.startswith(f"dragoman: --costs={path} (command line): must be a file in an existing directory")


@pytest.mark.usefixtures("loads_nothing")
def test_costs_for_another_number_of_cache_kinds_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "costs.json"
    write_costs(path, msgspec.structs.replace(COSTS, context_s=(0.0, 0.0), pair_s=(0.0, 0.0)))
    (line,) = problems([*ASKED, *SMALL, "--costs", str(path)], capsys, 1)
    assert line.endswith("context_s and pair_s have 2 numbers each, the model has 1 kinds of cache")


@table(
    ("words", "said"),
    [
        (["--prompt", "8", "--output", "4"], ["--rate: is needed, must be a number > 0"]),
        (["--rate", "0", "--prompt", "8", "--output", "4"], ["--rate=0 (command line): must be a number > 0"]),
        (["--rate", "1", "--prompt", "--output", "4"], ["--prompt (command line): must be followed by a value"]),
        (
            ["--rate", "1", "--prompt", "8", "--output", "4", "--router", "random"],
            ["--router=random (command line): must be one of least-outstanding, prefix"],
        ),
        (
            ["--rate", "1", "--prompt", "8", "--output", "4", "--shared-prefix", "8"],
            ["--shared-prefix=8 (command line): must be less than --prompt (8)"],
        ),
        (
            ["--rate", "1", "--prompt", "8", "--output", "4", "--prefixes", "8"],
            ["--prefixes=8 (command line): needs --shared-prefix, the tokens of each"],
        ),
        (
            ["--rate", "1", "--prompt", "8", "--output", "4", "--prt", "8"],
            ["--prt=8 (command line): unknown option; the nearest known one is --port"],
        ),
        (
            ["--rate", "1", "--prompt", "8", "--output", "x", "--dtype", "int3"],
            [
                "--output=x (command line): must be an integer >= 1",
                "--dtype=int3 (command line): must be one of auto, int8, int4, bf16, f16, f32 "
                "(also fp16, fp32, half, float16, float, float32, bfloat16, i8, i4)",
            ],
        ),
    ],
)
def test_every_wrong_word_is_one_line(words: list[str], said: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert problems(["plan", *words], capsys, 2) == [f"dragoman: {line}" for line in said]


def test_help_lists_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: dragoman plan [MODEL]")
    for option in COMMAND.options:
        assert f"  {option.flag}" in out


def test_a_plan_is_for_one_model(capsys: pytest.CaptureFixture[str]) -> None:
    demo = demo_model_dir()
    words = [*ASKED, "--load-models", f"a={demo}", f"b={demo}"]
    assert problems(words, capsys, 2) == [
        "dragoman: 2 models are named, and this command is for one; name its directory"
    ]


def test_how_long_it_takes_is_told_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class NoServer:
        def __init__(self, *_: object) -> None:
            raise CalibrationFailed("the test starts no server")

    monkeypatch.setattr("dragoman.cli.plan_run.served_model", NoServer)
    assert main([*ASKED, *SMALL]) == 1
    note, failure = capsys.readouterr().err.splitlines()
    told = re.fullmatch(
        r"dragoman: note: steps are measured for about (\d+) to (\d+) s, once the model is loaded; --costs FILE keeps .*",
        note,
    )
    assert told is not None
    assert 0 < int(told[1]) < int(told[2]) <= 144
    assert failure == "dragoman: the test starts no server"
