"""Runs llama.cpp's own tests of its server against this one: `python scripts/llamacpp_cases.py LLAMA_CPP [pytest's words]`.

Does: start this server where a case starts llama.cpp's, with the options that say the same, one process for all cases that
say the same; serve the demo model, or what --model names, where a case names a model of theirs. Does not: change or copy
the cases, which are read from the checkout. Their models are not downloaded, so cases that look for a model's own words or
count its tokens fail (docs/testing.md says which).

    python scripts/llamacpp_cases.py ~/llama.cpp
    python scripts/llamacpp_cases.py ~/llama.cpp --model demo.gguf unit/test_completion.py -k n_probs

Run by hand, where dragoman, pytest, requests, filelock, openai and prometheus-client are installed.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest
import requests

CASES = ("completion", "infill", "tokenize", "ignore_eos", "ctx_shift", "template", "basic")
START_S = 120.0
LONGEST = 2048  # the demo model's context; one case asks for more


class Servers:
    """The servers that run: one for each list of options. The last one is kept while cases ask for the same."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._options: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, case: Any) -> None:
        """Have the server of a case answer at the case's port."""
        options = self._options_of(case)
        if self._process is not None and self._process.poll() is None and options == self._options:
            return
        self.stop()
        command = [sys.executable, "-m", "dragoman", "serve", self._model, *options]
        keys = {"DRAGOMAN_API_KEY": case.api_key} if case.api_key else {}
        self._options = options
        self._process = subprocess.Popen(command, stdout=sys.stdout, stderr=sys.stdout, env={**os.environ, **keys})
        deadline = time.monotonic() + START_S
        while not self._answers(case):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start: {' '.join(command)}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End the one that runs."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
        self._process = None

    @staticmethod
    def _answers(case: Any) -> bool:
        host = case.server_host.split(",")[0]
        try:
            return requests.get(f"http://{host}:{case.server_port}/health", timeout=5).status_code == 200
        except requests.RequestException:
            return False

    @staticmethod
    def _options_of(case: Any) -> list[str]:
        """A case's settings in this server's words; llama.cpp divides its context by its slots."""
        slots = case.n_slots or 1
        options = ["--port", str(case.server_port), "--host", case.server_host, "--max-num-seqs", str(slots)]
        if case.n_ctx:
            options += ["--max-model-len", str(min(case.n_ctx if case.kv_unified else case.n_ctx // slots, LONGEST))]
        if case.model_alias:
            options += ["--name", case.model_alias]
        if case.chat_template_file:
            options += ["--chat-template", case.chat_template_file]
        today = datetime.date.today()
        told = {  # as llama.cpp tells every template
            "enable_thinking": case.reasoning != "off",
            "date_string": today.strftime("%d %b %Y"),
            "datetime": today.strftime("%b %d %Y"),
        }
        return [*options, "--default-chat-template-kwargs", json.dumps(told)]


def put_in_place(tests: Path, servers: Servers) -> None:
    """Change how the cases' own module starts and stops servers, before they are read."""
    sys.path.insert(0, str(tests))
    sys.modules.setdefault("wget", types.ModuleType("wget"))  # with which they download models
    utils = importlib.import_module("utils")
    utils.ServerProcess.start = lambda case, timeout_seconds=0: servers.start(case)
    utils.ServerProcess.stop = lambda case: None
    utils.ServerPreset.load_all = staticmethod(lambda: None)


def main() -> int:
    """Read the arguments and run the cases; pytest's exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama_cpp", type=Path, help="a checkout of llama.cpp")
    parser.add_argument("--model", default="demo", help="the model that is served")
    arguments, words = parser.parse_known_args()
    tests = (arguments.llama_cpp / "tools" / "server" / "tests").resolve()
    model = arguments.model if arguments.model == "demo" else str(Path(arguments.model).resolve())
    if not any(word.startswith("unit/") for word in words):
        words = [*(f"unit/test_{name}.py" for name in CASES), *words]
    os.chdir(tests)
    servers = Servers(model)
    put_in_place(tests, servers)
    try:
        return int(pytest.main(["-m", "not slow", "-p", "no:cacheprovider", *words]))
    finally:
        servers.stop()


if __name__ == "__main__":
    sys.exit(main())
