"""Nothing reports to anybody: what dependencies do when they are imported, and what the commands do from start to stop."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import httpx
import pytest

from tests.support.audited import Audit, audited
from tests.support.server_process import serve

ROOT = Path(__file__).resolve().parents[1]

_IMPORTS_OPENVINO = re.compile(r"^\s*(import openvino|from openvino)", re.MULTILINE)
_IMPORTS = """
import json, os, signal, sys, threading
import dragoman

def state():
    handlers = [str(signal.getsignal(number)) for number in sorted(signal.valid_signals()) if number not in (9, 19)]
    return dict(os.environ), handlers, threading.active_count(), sys.excepthook, threading.excepthook

for name, value in {"DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1", "RAY_USAGE_STATS_ENABLED": "0"}.items():
    assert os.environ[name] == value
del sys.modules["uvloop"]  # which the audit had put out of reach
before = state()
for name in json.loads(sys.argv[1]):
    __import__(name)
assert state() == before
"""


BELOW = ("huggingface_hub.hf_api", "opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")
"""Modules that the packages above them do not import."""

EXTRAS = ("remote", "otel", "terminal")  # what they need is installed for the tests


def dependencies() -> list[str]:
    """The modules of what dragoman requires, for itself and for some extras."""
    needed = [text for text in requires("dragoman") or [] if "extra ==" not in text or text.endswith(tuple(_ENDINGS))]
    names = {_normal(re.split(r"[^\w.-]", text)[0]) for text in needed}
    assert names >= {"openvino", "python-multipart", "aiohttp", "opentelemetry-sdk"}
    owners = packages_distributions()
    found = [name for name, packages in owners.items() if {_normal(package) for package in packages} & names]
    return [*sorted(name for name in found if not name.startswith("_")), *BELOW]


_ENDINGS = [f"extra == '{extra}'" for extra in EXTRAS]


def _normal(name: str) -> str:
    return name.replace("_", "-").lower()


def run(audit: Audit, *words: str) -> str:
    """What a program of this Python writes, in a process of its own."""
    command = [sys.executable, *words]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=300, env={**os.environ, **audit.environ}, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_dependencies_do_nothing_when_they_are_imported(tmp_path: Path) -> None:
    audit = audited(tmp_path)
    run(audit, "-c", _IMPORTS, json.dumps(dependencies()))
    assert audit.deeds() == []
    assert list(audit.home.iterdir()) == []


def test_openvino_is_never_imported_before_dragoman() -> None:
    """Within dragoman it cannot be; elsewhere the package at the top sees to it."""
    tops = {
        path.relative_to(ROOT).parts[0]
        for top in ("benchmarks", "demo", "examples", "scripts", "tests")
        for path in (ROOT / top).rglob("*.py")
        if _IMPORTS_OPENVINO.search(path.read_text(encoding="utf-8"))
    }
    assert tops == {"benchmarks", "tests"}
    for top in tops:
        code = f"import sys, {top}; assert sys.modules['openvino_telemetry'] is None"
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=ROOT)


@pytest.fixture
def audit(tmp_path: Path) -> Iterator[Audit]:
    """An audit of which, in the end, nothing but `dragoman`'s own cache was touched, and nobody but this machine asked."""
    audit = audited(tmp_path)
    yield audit
    deeds = audit.deeds()
    places = (audit.cache, audit.directory / "written", audit.directory / "temporary")
    allowed = [*map(str, places), *map(str, audit.cache.parents), os.devnull]
    written = {what for kind, what in deeds if kind == "write"}
    assert [path for path in written if path not in allowed and not any(map(Path(path).is_relative_to, places))] == []
    assert {what for kind, what in deeds if kind in ("connect", "look up")} <= {"127.0.0.1", "localhost"}
    # Python's own `platform` asks uname of the processor.
    assert {what for kind, what in deeds if kind == "start"} <= {"subprocess.Popen uname"}
    assert written & {str(audit.cache)}  # the hook was there
    assert list(audit.home.iterdir()) == [audit.home / ".cache"]
    assert list((audit.home / ".cache").iterdir()) == [audit.cache]


def test_a_server_touches_its_cache_and_this_machine_alone_from_start_to_stop(audit: Audit) -> None:
    with serve("--max-model-len", "256", environ=audit.environ) as server:
        body = {"prompt": "a", "max_tokens": 2}
        httpx.post(f"{server.base_url}/v1/completions", json=body, timeout=30).raise_for_status()
        assert server.terminate() == 0


@pytest.mark.full("imports of other commands than serve that report or write somewhere")
def test_so_do_other_commands_and_programs(audit: Audit) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a", "max_tokens": 2}}
    (audit.directory / "in.jsonl").write_text(json.dumps(line), encoding="utf-8")
    run(audit, "-m", "dragoman", "doctor")
    run(audit, "-m", "dragoman", "batch", str(audit.directory / "in.jsonl"), str(audit.directory / "written"))
    run(audit, "-c", "from dragoman.llm import LLM\nwith LLM() as llm: print(llm.generate('a', max_tokens=2))")
    with serve("--numa", "off", environ=audit.environ) as server:
        run(audit, "-m", "dragoman", "bench", server.base_url, "--requests", "2", "--output-tokens", "2")
    assert ("connect", "127.0.0.1") in audit.deeds()
