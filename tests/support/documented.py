"""The code blocks of the documentation, and which of them the tests do not run, and why.

Does: find fenced blocks with what a reader would paste (shell, Python), and tell by which test each is run. Does not: run
them. Used by tests/e2e/test_documented_commands.py and tests/e2e/test_readme.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHELL = ("bash", "sh", "shell", "console")
_FENCE = re.compile(r"^```(?P<language>\w*)[^\n]*\n(?P<source>.*?)^```$", re.MULTILINE | re.DOTALL)
_PAGES = ("README.md", "docs/**/*.md", "examples/**/*.md")

REASONS = ("internet", "installs", "GPU", "docker", "kubernetes", "root", "hours", "part", "another program", "by hand")
"""What a reason may begin with; else it begins with the test that runs the block in a way of its own."""

NOT_RUN: Mapping[str, Mapping[str, str]] = {
    "README.md": {"python": "tests/e2e/test_readme.py: runs it in its own process"},
    "docs/adapters.md": {"bash": "part: the adapters are yours; tests/e2e/test_adapters.py has some"},
    "docs/adding-a-family.md": {
        "python3 -m venv /tmp/reference": "installs: torch, 1 GB",
        'FAMILIES["HeliumForCausalLM"] = "relatives.Helium"': "part: of a dictionary",
        "python -m pytest tests/models/test_families.py -k helium": "part: of what the page makes",
    },
    "docs/adding-an-api.md": {
        "python": "tests/server/test_plugs.py: serves it",
        "dragoman serve": "tests/server/test_plugs.py: asks it the same",
        "python -m pytest tests/server/test_every_api.py -k parrot": "part: of the tests",
    },
    "docs/adding-an-engine.md": {
        "cp tests/support/toy_engine.py my_engine.py": "tests/contract/test_toy_engine.py: does it",
        "PYTHONPATH=. dragoman serve --engine my_engine:factory --port 9000": "tests/contract/test_toy_engine.py: serves it",
        "from my_engine import ToyEngine": "tests/contract/engines.py: has the same entry",
        "python -m pytest tests/contract -k mine": "part: of the tests; -k toy is the same",
    },
    "docs/batch.md": {"python": "tests/server/test_batches.py: takes the same steps"},
    "docs/deployment.md": {
        "docker build -t dragoman .": "docker: tests/deploy reads the file",
        "kubectl -n dragoman create secret generic dragoman-keys \\": "kubernetes: tests/deploy checks the files",
        "python3 -m venv /opt/dragoman && /opt/dragoman/bin/pip install .": "root: tests/deploy checks the unit",
    },
    "docs/dialects/anthropic.md": {"bash": "another program: Claude Code"},
    "docs/dialects/embeddings.md": {"shell": "tests/e2e/test_embeddings.py: compares the answers"},
    "docs/dialects/lmi.md": {
        "sh": "tests/e2e/test_models_come_and_go.py: has a model store",
        'runtime.invoke_endpoint(EndpointName="any", TargetModel="small.tar.gz", Body=b\'{"inputs": "Hello"}\')': (
            "tests/e2e/test_models_come_and_go.py: has a model store"
        ),
    },
    "docs/dialects/responses.md": {"python": "tests/e2e/test_responses.py: runs it in its own process"},
    "docs/hooks.md": {"python": "tests/hooks/test_hooks_page.py: serves them"},
    "docs/hub.md": {"bash": "internet: tests/hub has a hub of its own"},
    "docs/install.md": {
        "pip install dist/dragoman-*.whl             # into the environment that you are in": (
            "installs: scripts/check_wheel.py does the same"
        ),
    },
    "docs/openvino.md": {"bash": "part: the models are yours; tests/e2e/test_exported.py serves some"},
    "docs/prefix_store.md": {"python -m benchmarks.prefix_store --model MODEL_DIR": "hours: computes long prompts"},
    "docs/performance-log.md": {
        "bash": "hours: compares with servers of other projects; tests/benchmarks runs the parts"
    },
    "docs/performance.md": {"bash": "hours: compares with servers of other projects; tests/benchmarks runs the parts"},
    "docs/quickstart.md": {"python3 -m venv ~/dragoman": "installs: a gigabyte"},
    "docs/ray.md": {"bash": "installs: Ray; make test-ray runs the same application"},
    "docs/scaling.md": {
        "bash": "tests/plan/test_scaling_page.py: reads the planner's commands; the benchmarks take hours"
    },
    "docs/testing.md": {
        "apt-get download prometheus && dpkg -x prometheus_*.deb /tmp/prometheus": "internet: Debian's package",
        "python scripts/llamacpp_cases.py ~/llama.cpp --model stories260K.gguf --infill-model stories260K-infill.gguf"
        "  # some minutes": "another program: a checkout of llama.cpp",
    },
    "docs/vllm.md": {"bash": "GPU: make test-vllm runs it on the processor"},
    "examples/monitoring/README.md": {
        "shell": "another program: tests/e2e/test_dashboard.py runs Prometheus if there is one"
    },
}
"""By page, then by a block's first line, or by its language for all of that: why the tests of commands do not run it."""


@dataclass(frozen=True)
class CodeBlock:
    """A fenced block. `page`: its path in the repository; `line`: where it begins there."""

    page: str
    line: int
    language: str
    source: str

    @property
    def first_line(self) -> str:
        """What the block is known by."""
        return next((line for line in self.source.splitlines() if line.strip()), "").strip()

    @property
    def is_command(self) -> bool:
        """Whether it is something to be pasted."""
        return self.language in SHELL or self.language == "python" or self.is_session

    @property
    def is_session(self) -> bool:
        """Whether it shows commands behind a prompt, with answers that differ from run to run."""
        return self.language in ("", "text") and self.source.startswith("$ ")

    @property
    def commands(self) -> str:
        """What a shell is given: of a session without prompts and answers."""
        lines = re.findall(r"^\$ ((?:[^\n]*\\\n)*[^\n]*)$", self.source, re.MULTILINE)
        return "\n".join(lines) if self.is_session else self.source

    @property
    def is_run(self) -> bool:
        """Whether the tests of commands run it."""
        return self.is_command and NOT_RUN.get(self.page, {}).keys().isdisjoint((self.first_line, self.language))


def documented_pages() -> list[Path]:
    """README, the documentation's pages, and those of the examples."""
    return sorted(path for pattern in _PAGES for path in ROOT.glob(pattern))


def code_blocks() -> Iterator[CodeBlock]:
    """All fenced blocks of all pages."""
    for path in documented_pages():
        text = path.read_text(encoding="utf-8")
        for match in _FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield CodeBlock(path.relative_to(ROOT).as_posix(), line, match["language"], match["source"])
