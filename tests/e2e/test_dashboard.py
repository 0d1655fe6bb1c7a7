"""The dashboard in examples/monitoring shows something on every panel: a real Prometheus scrapes a real server.

Runs where the program `prometheus` is installed (Debian has a package of that name); the names of metrics are checked
everywhere.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.patience import PATIENCE_S
from tests.support.server_process import ServerProcess

FOLDER = Path(__file__).parents[2] / "examples" / "monitoring"
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
EXPRESSIONS = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]


def ask(server: ServerProcess, count: int) -> None:
    for number in range(count):
        body = {"model": "demo", "prompt": f"{number} The sea is", "max_tokens": 6, "ignore_eos": True}
        assert httpx.post(f"{server.base_url}/v1/completions", json=body, timeout=60).status_code == 200
    assert httpx.post(f"{server.base_url}/v1/completions", json={"prompt": 7}).status_code == 400


def test_every_metric_of_the_dashboard_exists_with_its_labels(default_server: ServerProcess) -> None:
    ask(default_server, 1)
    text = httpx.get(f"{default_server.base_url}/metrics").text
    labels: dict[str, set[str]] = {}
    for name, pairs in re.findall(r"^(\w+)\{(.*)\} ", text, re.MULTILINE):
        labels.setdefault(name, set()).update(re.findall(r'(\w+)="', pairs))
    for title, expression in EXPRESSIONS:
        grouped = {label for found in re.findall(r"by \(([^)]*)\)", expression) for label in found.split(", ")}
        for name, pairs in re.findall(r"(dragoman_\w+)(?:\{([^}]*)\})?", expression):
            assert grouped | set(re.findall(r'(\w+)=~"', pairs)) <= labels[name], (title, name)
    for variable in DASHBOARD["templating"]["list"]:
        for name, label in re.findall(r"label_values\((\w+), (\w+)\)", variable["query"]):
            assert label in labels[name], variable["name"]


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """Prometheus on a free port, scraping `target` every second; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = (
        (FOLDER / "prometheus.yml").read_text(encoding="utf-8").replace("5s", "1s").replace("127.0.0.1:8080", target)
    )
    (folder / "prometheus.yml").write_text(config, encoding="utf-8")
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    process = subprocess.Popen(
        [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def values(address: str, expression: str) -> list[float]:
    """What Prometheus computes now; nothing while it does not answer. Numbers that are none are left out."""
    query = expression.replace("$__rate_interval", "1m").replace("$model", ".*").replace("$outcome", ".*")
    try:
        answer: dict[str, Any] = httpx.get(f"{address}/api/v1/query", params={"query": query}).json()
    except httpx.TransportError:
        return []
    assert answer["status"] == "success", answer
    found = [float(sample["value"][1]) for sample in answer["data"]["result"]]
    return [value for value in found if value == value]


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
def test_every_panel_shows_something(default_server: ServerProcess, tmp_path: Path) -> None:
    with prometheus(tmp_path, default_server.base_url.removeprefix("http://")) as address:
        end_s = time.monotonic() + PATIENCE_S
        empty = [title for title, _ in EXPRESSIONS]
        while empty:
            assert time.monotonic() < end_s, f"nothing is shown on {empty}"
            ask(default_server, 2)  # rates need numbers that change between two scrapes
            empty = [title for title, expression in EXPRESSIONS if not values(address, expression)]
