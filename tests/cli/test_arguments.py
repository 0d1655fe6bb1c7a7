"""The command line as texts."""

from __future__ import annotations

import pytest

from dragoman.cli import main
from dragoman.cli.arguments import read_arguments
from dragoman.cli.subcommand import CommandOption, ReadWords
from dragoman.config.kinds import Switch
from tests.support.tables import table


def pairs(line: str) -> list[tuple[str, str]]:
    arguments = read_arguments(line.split())
    assert arguments.problems == ()
    return [(given.name, given.text) for given in arguments.givens]


@table(
    ("line", "expected"),
    [
        ("", []),
        ("--port 9000", [("--port", "9000")]),
        ("--port=9000", [("--port", "9000")]),
        ("--port -1", [("--port", "-1")]),
        ("--tgi-compat", [("--tgi-compat", "true")]),
        ("--no-tgi-compat", [("--no-tgi-compat", "false")]),
        ("--tgi-compat=false", [("--tgi-compat", "false")]),
        ("--tgi-compat false", [("--tgi-compat", "false")]),
        ("--tgi-compat model", [("--tgi-compat", "true"), ("MODEL_DIR", "model")]),
        ("model --port 1", [("--port", "1"), ("MODEL_DIR", "model")]),
        ("--trust-remote-code model", [("--trust-remote-code", "true"), ("MODEL_DIR", "model")]),
        ("--tensor-parallel-degree 2 model", [("--tensor-parallel-degree", "2"), ("MODEL_DIR", "model")]),
        ("--max-rolling-batch-size 3", [("--max-rolling-batch-size", "3")]),
        ("-s store -f file", [("-s", "store"), ("-f", "file")]),
        ("-s=store model", [("-s", "store"), ("MODEL_DIR", "model")]),
        ("-m a=x", [("-m", "a=x")]),
        ("-m a=x b=y -s store", [("-m", "a=x,b=y"), ("-s", "store")]),
        ("-m a=x --port 1 --models b=y c", [("-m", "a=x,b=y,c"), ("--port", "1")]),
        ("model --load-models a,b --load-models=c", [("--load-models", "a,b,c"), ("MODEL_DIR", "model")]),
    ],
)
def test_flags_and_the_model_directory_are_distinguished(line: str, expected: list[tuple[str, str]]) -> None:
    assert pairs(line) == expected


@pytest.mark.parametrize(
    ("flag", "key"),
    [
        ("--models", "load_models"),
        ("-s", "model_store"),
        ("-f", "config_file"),
        ("-w", "workflows"),
    ],
)
def test_flags_of_lmis_command_line_have_lmis_meaning(flag: str, key: str) -> None:
    (given,) = read_arguments([flag, "x"]).givens
    assert (given.name, given.key) == (flag, key)


def test_a_negated_switch_has_the_key_of_the_switch() -> None:
    (given,) = read_arguments(["--no-tgi-compat"]).givens
    assert given.key == "tgi_compat"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("--port", "--port (command line): must be followed by a value"),
        ("--port --tgi-compat", "--port (command line): must be followed by a value"),
        ("-s -f file", "-s (command line): must be followed by a value"),
        ("-m -s=store", "-m (command line): must be followed by a value"),
        ("a b c", "b c (command line): unexpected; one model directory at most may be given"),
    ],
)
def test_a_malformed_command_line_is_one_problem(line: str, problem: str) -> None:
    assert read_arguments(line.split()).problems == (problem,)


@pytest.mark.parametrize(
    ("line", "text"),
    [("--prot 9000", "9000"), ("--prot=9000", "9000"), ("--prot --port 1", ""), ("--no-port --port 1", "")],
)
def test_an_unknown_flag_takes_its_value_and_hides_stray_words(line: str, text: str) -> None:
    arguments = read_arguments([*line.split(), "stray", "words"])
    assert arguments.problems == ()
    assert arguments.givens[0].text == text


@table(
    ("line", "is_on", "others"),
    [
        ("--tgi-compat", True, []),
        ("--tgi-compat=false", False, []),
        ("--tgi-compat false", False, []),
        ("--tgi-compat off model", False, ["model"]),
        ("--tgi-compat model", True, ["model"]),
        ("--no-tgi-compat", False, []),
        ("--no-tgi-compat true", False, ["true"]),
    ],
)
def test_switches_of_commands_have_the_forms_of_the_servers(line: str, is_on: bool, others: list[str]) -> None:
    of_command = ReadWords([CommandOption("tgi_compat", Switch(), "")], line.split())
    assert (of_command.values, of_command.others, of_command.problems) == ({"tgi_compat": is_on}, others, [])
    of_server = read_arguments(line.split()).givens
    assert [given.text for given in of_server if given.name == "MODEL_DIR"] == others
    (switch,) = [given.text for given in of_server if given.name != "MODEL_DIR"]
    assert Switch().parse(switch) is is_on


@table(
    ("line", "told"),
    [
        ("plan --rat 3", "--rat (command line): unknown option; the nearest one is --rate"),
        ("chat --sytem x", "--sytem (command line): unknown option; the nearest one is --system"),
        ("warm m f --kye=a", "--kye (command line): unknown option; the nearest one is --key"),
        (
            "bench http://h --concurency 3",
            "--concurency (command line): unknown option; the nearest one is --concurrency",
        ),
        (
            "store --colour",
            "--colour (command line): unknown option; must be one of --prefix-store-dir, --to-gb, --json",
        ),
        ("plan --dytpe int4", "--dytpe=int4 (command line): unknown option; the nearest known one is --dtype"),
        (
            "chat --api-key hush",
            "--api-key (command line): secrets are not taken from here, where others on this machine",
        ),
    ],
)
def test_a_mistyped_option_names_the_nearest_of_command_and_server(
    line: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    said = capsys.readouterr().err
    assert f"dragoman: {told}" in said
    assert "hush" not in said
