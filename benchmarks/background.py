"""Measures what work that can wait costs somebody who does not: one stream alone, and beside a batch, in turn.

Does: start a server with a place for batches, ask it over HTTP, print a table. Does not: judge. On a machine that does
nothing else, from the repository's root:

    python -m benchmarks.background --model MODEL
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import httpx

from benchmarks.serving.peers import plain_server
from benchmarks.serving.processes import ServerProcess

MOST_S = 600.0


@dataclass(frozen=True, slots=True)
class Case:
    """How long the stream is, in tokens, how large the batch, and how often both are measured."""

    prompt_tokens: int = 64
    answer_tokens: int = 128
    num_requests: int = 400
    batch_prompt_tokens: int = 128
    batch_answer_tokens: int = 64
    rounds: int = 5


@dataclass(slots=True)
class Measured:
    """Of one way to run: seconds until the first token, seconds for each further one, requests of the batch a second."""

    first_s: list[float] = field(default_factory=list)
    token_s: list[float] = field(default_factory=list)
    requests_s: list[float] = field(default_factory=list)


def measure(client: httpx.Client, case: Case) -> dict[str, Measured]:
    """A stream alone, beside a batch, and the batch alone."""
    found = {name: Measured() for name in ("alone", "beside a batch", "the batch alone")}
    for number in range(case.rounds + 1):  # the first is not counted: nothing is learned of the machine before
        alone = _stream(client, case, 2 * number)
        batch = _submit(client, case, number)
        _until(client, batch, 1)
        begin_s, begin = time.monotonic(), _num_answered(client, batch)
        while (count := _num_answered(client, batch)) < begin + 8:
            _check(begin_s)
        batch_s = (count - begin) / (time.monotonic() - begin_s)
        begin_s, begin = time.monotonic(), count
        beside = _stream(client, case, 2 * number + 1)
        beside_s = (_num_answered(client, batch) - begin) / (time.monotonic() - begin_s)
        client.post(f"/v1/batches/{batch}/cancel").raise_for_status()
        _until(client, batch, None)
        if number:
            for name, (first_s, token_s) in (("alone", alone), ("beside a batch", beside)):
                found[name].first_s.append(first_s)
                found[name].token_s.append(token_s)
            found["beside a batch"].requests_s.append(beside_s)
            found["the batch alone"].requests_s.append(batch_s)
    return found


def _stream(client: httpx.Client, case: Case, number: int) -> tuple[float, float]:
    """(Seconds until the first token, seconds for each further one)."""
    prompt = [1 + (number * 7919 + i * 31) % 900 for i in range(case.prompt_tokens)]
    body = {"prompt": prompt, "max_tokens": case.answer_tokens, "ignore_eos": True, "stream": True, "temperature": 0}
    begin_s, times = time.monotonic(), []
    with client.stream("POST", "/v1/completions", json=body) as answer:
        answer.raise_for_status()
        times += [time.monotonic() for line in answer.iter_lines() if line.startswith("data: {")]
    return times[0] - begin_s, (times[-1] - times[0]) / (case.answer_tokens - 1)


def _submit(client: httpx.Client, case: Case, number: int) -> str:
    """The id of a new batch."""
    lines = []
    for index in range(case.num_requests):
        seed = number * case.num_requests + index
        prompt = [1 + (seed * 104_729 + i * 17) % 900 for i in range(case.batch_prompt_tokens)]
        body = {"prompt": prompt, "max_tokens": case.batch_answer_tokens, "ignore_eos": True, "temperature": 0}
        lines.append({"custom_id": str(index), "method": "POST", "url": "/v1/completions", "body": body})
    content = "\n".join(map(json.dumps, lines)).encode()
    file = client.post("/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"}).json()
    asked = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    return str(client.post("/v1/batches", json=asked).raise_for_status().json()["id"])


def _num_answered(client: httpx.Client, batch: str) -> int:
    return int(client.get(f"/v1/batches/{batch}").json()["request_counts"]["completed"])


def _until(client: httpx.Client, batch: str, num_answered: int | None) -> None:
    """Return once so many requests are answered; None: once the batch has ended."""
    begin_s = time.monotonic()
    while True:
        seen = client.get(f"/v1/batches/{batch}").json()
        if seen["status"] in ("cancelled", "completed", "failed"):
            return
        if num_answered is not None and seen["request_counts"]["completed"] >= num_answered:
            return
        _check(begin_s)


def _check(begin_s: float) -> None:
    if time.monotonic() - begin_s > MOST_S:
        raise TimeoutError("the batch does not get on")
    time.sleep(0.02)  # what is measured must not be asked about all the time


def table(found: dict[str, Measured]) -> str:
    """The medians, and the stream's beside the batch by those alone, as Markdown."""
    rows = ["| | first token, ms | ms a token | by alone | the batch, requests/s |", "|---|---|---|---|---|"]
    alone_s = median(found["alone"].token_s)
    for name, one in found.items():
        first = f"{1000 * median(one.first_s):.0f}" if one.first_s else ""
        token = f"{1000 * median(one.token_s):.2f}" if one.token_s else ""
        by = f"{median(one.token_s) / alone_s:.3f}" if one.token_s else ""
        batch = f"{median(one.requests_s):.2f}" if one.requests_s else ""
        rows.append(f"| {name} | {first} | {token} | {by} | {batch} |")
    return "\n".join(rows)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    for name in (
        "prompt_tokens",
        "answer_tokens",
        "num_requests",
        "batch_prompt_tokens",
        "batch_answer_tokens",
        "rounds",
    ):
        usual = Case.__dataclass_fields__[name].default
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=usual)
    asked = vars(parser.parse_args(words))
    model = asked.pop("model")
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        server = plain_server(model, place / "graphs", "--store-dir", str(place / "store"))
        with ServerProcess(server, place), httpx.Client(base_url=server.url, timeout=MOST_S) as client:
            sys.stdout.write(table(measure(client, Case(**asked))) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
