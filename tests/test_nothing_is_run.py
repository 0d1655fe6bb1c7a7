"""Nothing that comes with a checkpoint or a request is run: what the source can run at all, and what is tried on it."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.config.resolve import demo_model_dir
from dragoman.errors import InvalidRequest
from dragoman.models.config import ModelError
from dragoman.models.stored.opening import stored_weights
from dragoman.tokenizer.chat_template import ChatTemplate, load_chat_template
from dragoman.tokenizer.hf_tokenizer import load_tokenizer
from dragoman.types import ChatPrompt
from tests.support.real_dialects import real_dialects
from tests.support.running_server import running_server

SOURCE = Path(__file__).resolve().parents[1] / "src" / "dragoman"

RUNS = {"eval", "exec", "compile", "__import__", "import_module", "system", "popen", "Popen", "spec_from_file_location"}
"""Calls that run what they are given, or might; of methods `compile` does not, as that of `re`."""

READS_CODE = {
    "pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "marshal",
    "shelve",
    "subprocess",
    "torch",
    "transformers",
    "yaml",
}
"""Modules that run what they read, or can."""

WORDS = re.compile(rf"\b({'|'.join([*RUNS, *READS_CODE, 'allow_pickle'])})\b")  # to read as little as possible in full

ALLOWED: Mapping[str, str] = {
    "server/apis/lmi/hooks/loader.py": "the operator's model.py, where hooks are on",
    "engine/vllm/surface.py": "vLLM's own torch, to hand it tensors; it loads nothing",
    "engine/factory.py": "the engine that the operator names as module:factory",
    "cli/plan_run.py": "dragoman itself, with the words of the operator's command line",
    "cli/subcommand.py": "dragoman's own commands, a fixed list",
    "nodes/messages.py": "what a server and its own nodes' processes write, over sockets that nobody else has",
    "nodes/process.py": "this program, as the process of a node",
    "server/apis/__init__.py": "the client APIs, a fixed list",
    "models/families/__init__.py": "the families, a fixed table",
    "models/families/vision.py": "the vision towers, a fixed table",
    "models/pooling/families/__init__.py": "the families that embed, a fixed table",
    "grammar/compiler.py": "llguidance, by its name",
    "grammar/trial.py": "llguidance, by its name, and itself, in a process that is limited",
    "tokenizer/trial.py": "tokenizers, by its name, and itself, in a process that is limited",
    "tokenizer/template_environment.py": "in a process of the server's own, what the server writes to it",
    "tokenizer/template_process.py": "this program, as the limited process that renders templates",
}


def suspects(tree: ast.AST) -> Iterator[str]:
    """What of a module may run code: calls, and imports of what reads it."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in RUNS:
                yield name
            case ast.Call(func=ast.Attribute(attr=name)) if name in RUNS - {"compile"}:
                yield name
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name.partition(".")[0] in READS_CODE)
            case ast.ImportFrom(module=str(module), level=0) if module.partition(".")[0] in READS_CODE:
                yield module
            case ast.keyword(arg="allow_pickle", value=ast.Constant(value=True)):
                yield "allow_pickle"


def found_in_source() -> dict[str, list[str]]:
    """The suspects of every module that has any, without what runs inside vLLM's and Ray's environments."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if WORDS.search(text) and (lines := sorted(set(suspects(ast.parse(text))))):
            found[path.relative_to(SOURCE).as_posix()] = lines
    return found


def test_only_known_places_of_the_source_run_what_they_are_given() -> None:
    """A new one has to be thought of here, with its reason."""
    found = found_in_source()
    assert set(found) == set(ALLOWED), found


def test_the_search_would_find_it() -> None:
    source = (
        "import pickle\nfrom torch import load\neval(x)\nnp.load(p, allow_pickle=True)\nre.compile(x)\nos.system(y)"
    )
    assert set(suspects(ast.parse(source))) == {"pickle", "torch", "eval", "allow_pickle", "system"}


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.popen('touch ran').read() }}",
    "{{ lipsum.__globals__['os'].system('touch ran') }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__code__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ messages|map(attribute='__class__')|list|first|attr('__mro__') }}",
    "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "{{ '%s'|format(messages.__class__) }}",
    "{% set x = messages.append(1) %}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os }}",
    "{% extends '/etc/passwd' %}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_templates_do_not_get_out_of_their_sandbox(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for is_vouched in (True, False):
        try:
            template = ChatTemplate(source, is_vouched=is_vouched)
            text = template.render(ChatPrompt(({"role": "user", "content": "Hi"},)))
        except (InvalidRequest, ValueError):
            text = ""
        assert "root:" not in text
        assert "<class" not in text
        assert "<function" not in text
        assert "builtins" not in text
    assert list(tmp_path.iterdir()) == []


def test_what_a_client_writes_is_no_template() -> None:
    template = ChatTemplate("{% for message in messages %}{{ message.content }}{% endfor %}")
    content = "{{ 7 * 7 }}{% include '/etc/passwd' %}"
    assert template.render(ChatPrompt(({"role": "user", "content": content},))) == content


@pytest.mark.parametrize("field", ["chat_template", "trust_remote_code", "logits_processors"])
def test_clients_choose_neither_template_nor_code(field: str) -> None:
    body = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}], field: "{{ ''.__class__ }}"}
    with running_server(dialects=real_dialects()) as server:
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers={"authorization": "Bearer x"})
    assert answer.status_code == 400 or answer.headers["x-dragoman-ignored"] == field
    assert "__class__" not in answer.text or answer.status_code == 400


def bundled(directory: Path, **changes: Any) -> Path:
    """The bundled model with Python files beside it, and a config that names them."""
    directory.mkdir()
    for path in demo_model_dir().iterdir():
        (directory / path.name).symlink_to(path)
    code = f"open({str(directory / 'ran')!r}, 'w')\n"
    for name in ("modeling_x.py", "configuration_x.py", "tokenization_x.py", "__init__.py"):
        (directory / name).write_text(code, encoding="utf-8")
    for name in ("config.json", "tokenizer_config.json"):
        known = json.loads((directory / name).read_text(encoding="utf-8"))
        (directory / name).unlink()
        (directory / name).write_text(json.dumps({**known, **changes}), encoding="utf-8")
    return directory


def test_python_files_of_a_checkpoint_are_not_imported(tmp_path: Path) -> None:
    classes = {
        "AutoConfig": "configuration_x.X",
        "AutoModelForCausalLM": "modeling_x.X",
        "AutoTokenizer": ["tokenization_x.X"],
    }
    model = bundled(tmp_path / "model", auto_map=classes, trust_remote_code=True)
    tokenizer = load_tokenizer(model)
    assert load_chat_template(tokenizer) is not None
    with stored_weights(model).open() as weights:
        assert weights is not None
    assert not (model / "ran").exists()


def test_a_file_that_only_claims_to_be_safetensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x80\x04cos\nsystem\n(S'touch ran'\ntR.")
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ModelError), stored_weights(tmp_path).open():
        pass
