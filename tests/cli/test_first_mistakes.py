"""Mistakes at a first start: each is reported in one line, with advice."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.cli import main
from dragoman.config.kinds import Value
from dragoman.config.resolve import ConfigError, demo_model_dir
from dragoman.errors import ModelError
from dragoman.llm import LLM
from tests.support.environment import forget_settings
from tests.support.pooling_checkpoint import write_pooling_case


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forget_settings(monkeypatch)
    monkeypatch.chdir(tmp_path)


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The only line that the refused command writes."""
    assert main(list(words)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    [line] = err.splitlines()
    return line


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("./models/no-such", "there is none of that name"),
        ("no-such", "there is none of that name; a model of the hub is named ORG/NAME, as in Qwen/Qwen3-0.6B"),
        ("notes.txt", "this is a file of another kind"),
        ("--model-store empty", "must be a directory that holds at least one model; it is empty"),
        ("--model-store none", "must be a directory that holds at least one model; there is no directory of that name"),
    ],
)
def test_a_path_without_a_model_is_reported_before_loading(
    words: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("hello", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    assert told(capsys, "serve", *words.split()).endswith(says)


def refusal(model: Path | None = None, **options: Value) -> str:
    """The error for a model, or an option, that cannot be served."""
    with pytest.raises((ConfigError, ModelError)) as caught:
        LLM(model, **options)  # type: ignore[arg-type]  # an option of the table, not `progress`
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the demo model, to be spoiled."""
    directory = tmp_path / "model"
    shutil.copytree(demo_model_dir(), directory)
    return directory


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    says = refusal(tmp_path / "new")
    assert says == f"{tmp_path}/new is not a model: there is neither config.json nor a GGUF file in it; it is empty"


def test_a_directory_without_a_model_names_its_contents(tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    for name in ("a.py", "b.py", "c.py", "d.py", "e.py", "f.py"):
        (tmp_path / "sources" / name).touch()
    assert refusal(tmp_path / "sources").endswith("it holds a.py, b.py, c.py, d.py, e.py, ...")


def test_a_broken_config_is_named_as_the_only_problem(model: Path) -> None:
    (model / "config.json").write_text('{"architectures": [', encoding="utf-8")
    assert refusal(model).startswith(f"{model}/config.json is not valid JSON: ")


def test_a_broken_tokenizer_is_named(model: Path) -> None:
    (model / "tokenizer.json").write_text("nope", encoding="utf-8")
    says = refusal(model)
    assert says.startswith(f"{model}/tokenizer.json cannot be used: ")
    assert says.endswith("; fetch it again from the model's source")


def test_a_broken_gguf_is_named_once(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUFxx")
    assert refusal(path).startswith(f"{path} is not a readable GGUF file: ")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n",
            "`git lfs pull` in its directory brings them",
        ),
        (None, "if it arrived in part, bring it again"),
    ],
    ids=["lfs", "half"],
)
def test_missing_weights_name_the_command_that_brings_them(model: Path, content: bytes | None, says: str) -> None:
    path = model / "model.safetensors"
    path.write_bytes(content or path.read_bytes()[:100_000])
    assert refusal(model).endswith(says)


def test_a_model_without_weights_names_their_source(model: Path) -> None:
    (model / "model.safetensors").unlink()
    assert "holds no *.safetensors file" in refusal(model)
    assert "`dragoman pull ORG/NAME`" in refusal(model)


def test_an_unsupported_architecture_names_an_engine_for_it(model: Path) -> None:
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (model / "config.json").write_text(json.dumps({**config, "architectures": ["NoSuchForCausalLM"]}), encoding="utf-8")
    says = refusal(model)
    assert says.startswith(
        'architectures ["NoSuchForCausalLM"] are not supported by the built-in engine (--engine vllm '
    )
    assert "LlamaForCausalLM" in says


def test_a_misspelt_template_file_is_not_a_template() -> None:
    says = refusal(chat_template="./chat-template.jinja")
    assert says.startswith(
        "chat_template=./chat-template.jinja (argument of LLM): must be a file or a Jinja template; "
    )


def test_a_template_file_that_does_not_compile_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text("{% if %}", encoding="utf-8")
    says = refusal(chat_template=str(tmp_path / "mine.jinja"))
    assert says.startswith(
        f"chat_template={tmp_path}/mine.jinja (argument of LLM): chat template default does not compile"
    )


def test_entry_points_are_not_searched_in_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise RuntimeError('read')\n", encoding="utf-8")
    assert refusal(entry_point="mine.py").endswith("there is none of that name")


def test_every_usual_flag_for_a_model_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An ignored name would have the demo model served instead."""
    ways = [["/missing"], ["--model", "/missing"], ["--model=/missing"], ["-m", "/missing"], ["--model-id", "/missing"]]
    for words in ways:
        assert main(["config", *words]) == 2, words
        assert "=/missing (command line): must be a directory" in capsys.readouterr().err, words
    for variable in ("MODEL_ID", "HF_MODEL_ID", "OPTION_MODEL_ID"):
        with monkeypatch.context() as patched:
            patched.setenv(variable, "/missing")
            assert main(["config"]) == 2, variable
        assert f"{variable}=/missing (environment): must be a directory" in capsys.readouterr().err
    assert main(["config", "demo", "--model", "demo-vision"]) == 2
    assert "one model at most may be named" in capsys.readouterr().err


def test_a_list_of_models_after_m_is_lmis(capsys: pytest.CaptureFixture[str]) -> None:
    demo = str(demo_model_dir())
    for words, names in ((["-m", f"a={demo}"], ["a"]), (["-m", f"a={demo}", f"b={demo}"], ["a", "b"])):
        assert main(["config", *words]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[1] for line in lines if line.startswith("model ")] == names


@pytest.mark.parametrize("command", ["serve", "config", "doctor", "chat", "selftest"])
def test_an_unreadable_path_gives_one_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "/" + "x" * 300]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "File name too long; check the path" in told


def test_too_little_memory_gives_one_line(tmp_path: Path) -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (200 << 20, 200 << 20)); import dragoman.cli as cli; "
    )
    run = subprocess.run(
        [sys.executable, "-c", code + "raise SystemExit(cli.main(['serve', '--port', '0']))"],
        capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path,
    )  # fmt: skip
    assert run.returncode == 1
    assert run.stderr == (
        "dragoman: serve: the memory does not suffice: the process may map 200 MiB at most; raise it with ulimit -v\n"
    )


def test_missing_parts_of_a_model_are_reported_before_it_is_built(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Building a large model takes minutes."""

    def built(*_: object) -> None:
        raise AssertionError("the model is built")

    monkeypatch.setattr("dragoman.engine.rolling.factory.RollingFactory.load", built)
    (model / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((model / "tokenizer_config.json").read_text(encoding="utf-8"))
    config.pop("chat_template", None)
    (model / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    assert main(["chat", str(model)]) == 1
    assert f"has no chat template, so it cannot chat; `dragoman complete {model}`" in capsys.readouterr().err
    embedder = write_pooling_case("bert_mean", model.parent)
    for command in ("chat", "complete"):
        assert main([command, str(embedder), *(["Hi"] if command == "complete" else [])]) == 1
        assert f"embeds or scores texts and cannot generate; `dragoman serve {embedder}`" in capsys.readouterr().err
    (model / "tokenizer.json").unlink()
    assert "`dragoman pull ORG/NAME` brings it" in refusal(model)
    gguf = model.parent / "some.gguf"
    gguf.write_bytes(b"GGUF")
    assert main(["compress", str(gguf), str(model.parent / "out")]) == 1
    assert "is a GGUF, whose weights are compressed already; must be a model directory" in capsys.readouterr().err


SAMPLED_OR_OFF = ("default_temperature 0.5 ", "default_seed 7 ", "slots false ", "playground false ")


def test_commands_of_other_programs_run_or_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--ctx-size",
        "64",
        "-ngl",
        "99",
        "--jinja",
        "--flash-attn",
        "--parallel",
        "3",
        "--alias",
        "mine",
        "-t",
        "1",
    ]
    words += ["--temp", "0.5", "--seed", "7", "--mlock", "--no-slots", "--no-ui", "--kv-unified", "--no-context-shift"]
    assert main(["config", *words]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for told in (
        "max_model_len 64 ",
        "max_num_seqs 3 ",
        "name mine ",
        "context_shift false ",
        "threads 1 ",
        *SAMPLED_OR_OFF,
    ):
        assert told in out
    assert "-ngl=99 (command line): no effect here; the model runs on the CPU" in out
    assert "kv_unified" not in out
    for name in ("hf.co/some-org/no-such", "https://huggingface.co/some-org/no-such/"):
        assert main(["config", name]) == 2
        assert "`dragoman pull some-org/no-such` brings it" in capsys.readouterr().err
    for command, told in (("ps", "/api/ps"), ("stop", "SIGTERM"), ("show", "dragoman config"), ("push", "the hub")):
        assert main([command]) == 2
        line = capsys.readouterr().err
        assert line.startswith(f"dragoman: {command}: is no command here; ")
        assert told in line
    for alias, shown in (
        ("list", "usage: dragoman models"),
        ("run", "usage: dragoman chat"),
        ("rm", "usage: dragoman mo"),
    ):
        assert main([alias, "--help"]) == 0
        assert capsys.readouterr().out.startswith(shown)
    for words in (["chat"], ["complete", "x"], ["bench"]):
        assert main([*words[:1], "127.0.0.1:1", *words[1:]]) == 1
        assert "http://127.0.0.1:1" in capsys.readouterr().err


def test_a_secret_on_the_command_line_is_refused_and_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--api-key", "hush-hush"], ["--api-key=hush-hush"]):
        assert main(["serve", *words]) == 2
        told = capsys.readouterr().err
        assert told.startswith("dragoman: --api-key (command line): secrets are not taken from here")
        assert "DRAGOMAN_API_KEY" in told
        assert "--api-key-file FILE" in told
        assert "hush" not in told
    assert main(["serve", "--aws-key-pair", "hush-hush"]) == 2
    told = capsys.readouterr().err
    assert "hush" not in told
    assert "DRAGOMAN_AWS_KEY_PAIR" in told
