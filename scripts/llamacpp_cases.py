"""Runs llama.cpp's own tests of its server against this one: `python scripts/llamacpp_cases.py LLAMA_CPP [pytest's words]`.

Does: start this server where a case starts llama.cpp's, with the options that say the same; serve the files that --model and
--infill-model name where a case names a model of theirs. Does not: change or copy the cases, which are read from the
checkout; download models. With the demo model, which is served where no file is named, cases that look for a model's own
words or count its tokens fail (docs/testing.md says which).

    python scripts/llamacpp_cases.py ~/llama.cpp
    python scripts/llamacpp_cases.py ~/llama.cpp --model stories260K.gguf unit/test_completion.py -k n_probs

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


SEEDS = {
    "test_completion": 88,
    "test_completion_stream": 88,
    "test_completion_with_openai_library": 46,
    "test_completion_stream_with_openai_library": 46,
}
"""Seeds with which this server draws the words that cases look for; llama.cpp draws them with the cases' own seed."""

FURTHER_NAMES = {name: "davinci-002" for name in SEEDS if "openai" in name}
"""Names that cases call the model by, and llama.cpp does not look at; here a model that is not served is an error."""


class Servers:
    """The server that runs. It is kept while one test function, for several values, asks for the same options."""

    def __init__(self, model: str, infill_model: str) -> None:
        self._models = {False: model, True: infill_model}
        self._asked: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, case: Any) -> None:
        """Have the server of a case answer at the case's port."""
        name = os.environ["PYTEST_CURRENT_TEST"].rpartition("::")[2].partition("[")[0].partition(" ")[0]
        case.seed = SEEDS.get(name, case.seed)
        options = self._options_of(case, FURTHER_NAMES.get(name, ""))
        if self._process is not None and self._process.poll() is None and self._asked == [name, *options]:
            return
        self.stop()
        self._asked = [name, *options]
        command = [sys.executable, "-m", "dragoman", "serve", *options]
        keys = {"DRAGOMAN_API_KEY": case.api_key} if case.api_key else {}
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

    def _options_of(self, case: Any, further_name: str) -> list[str]:
        """A case's settings in this server's words; llama.cpp divides its context by its slots."""
        slots = case.n_slots or 1
        options = [self._models["infill" in f"{case.model_hf_repo}"], "--dtype", "f32"]
        options += ["--port", str(case.server_port), "--host", case.server_host, "--max-num-seqs", str(slots)]
        options += ["--temp", str(case.temperature), "--seed", str(case.seed)]
        options += ["--slots" if case.server_slots else "--no-slots", *(["--no-ui"] if case.no_ui else [])]
        options += ["--context-shift"] if case.enable_ctx_shift else []
        if case.n_ctx:
            options += ["--max-model-len", str(min(case.n_ctx if case.kv_unified else case.n_ctx // slots, LONGEST))]
        names = (
            sorted(case.model_alias.split(",")) if case.model_alias else []
        )  # theirs takes the first in the alphabet
        options += ["--name", ",".join([*names, *filter(None, [further_name])])] if names else []
        if case.model_tags:
            options += ["--tags", case.model_tags]
        if case.chat_template_file:
            options += ["--chat-template", case.chat_template_file]
        told = {  # as llama.cpp tells every template
            "enable_thinking": case.reasoning != "off",
            "date_string": datetime.date.today().strftime("%d %b %Y"),
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
    parser.add_argument("--model", default="demo", help="the model that is served: theirs is stories260K.gguf")
    parser.add_argument("--infill-model", default="demo", help="the same for cases of /infill: stories260K-infill.gguf")
    arguments, words = parser.parse_known_args()
    tests = (arguments.llama_cpp / "tools" / "server" / "tests").resolve()
    models = [one if one == "demo" else str(Path(one).resolve()) for one in (arguments.model, arguments.infill_model)]
    if not any(word.startswith("unit/") for word in words):
        words = [*(f"unit/test_{name}.py" for name in CASES), *words]
    os.chdir(tests)
    servers = Servers(*models)
    put_in_place(tests, servers)
    try:
        return int(pytest.main(["-m", "not slow", "-p", "no:cacheprovider", *words]))
    finally:
        servers.stop()


if __name__ == "__main__":
    sys.exit(main())
