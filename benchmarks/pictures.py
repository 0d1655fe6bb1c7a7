"""Measures what pictures cost over HTTP: first tokens, pictures a second, and the gaps of streams that decode meanwhile.

Does: a model of LLaVA 1.5's tower (CLIP ViT-L/14 for 336 pixels) and a decoder of 386 million parameters, weights random;
our server, and beside it llama.cpp's and OpenVINO GenAI's pipeline (without HTTP in its way), in turn, all others stopped
meanwhile. The last line is JSON. Does not: judge. A peer that is not installed or does not run is named as missing.
Run by hand, on an otherwise idle machine:

    python -m benchmarks.serving.peers install llama.cpp genai optimum
    python -m benchmarks.pictures --model DIR            (DIR keeps the model's files, 2 GB; without it they are temporary)
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from benchmarks.serving import peers
from benchmarks.serving.load import LoadFailed, WireForm, ask
from benchmarks.serving.model import BenchShape, write_gguf
from benchmarks.serving.picture_model import (
    PICTURE_TOKENS,
    TowerShape,
    data_url,
    draw_jpeg,
    write_mmproj,
    write_picture_model,
)
from benchmarks.serving.processes import JsonWorker, ProcessFailed, ServerProcess
from dragoman.tools.percentiles import percentile

_QUESTION_TOKENS = 16
_STREAM_TOKENS = 1500  # more than a stream gets to while its gaps are measured
_SLOT_TOKENS = 2048
_KINDS = ("new", "known", "moved", "text")
"""Requests with a picture that was never seen; the first one of the run and another question; the same with another text
before it, so that the prompt must be computed; a text of as many tokens."""


# --- what is asked ----------------------------------------------------------------------------------------------------


@cache
def _jpeg(number: int) -> bytes:
    return draw_jpeg(number)


def _letters(seed: str, num_tokens: int) -> str:
    """Two small letters to a token."""
    stream = random.Random(seed)
    return "".join(chr(97 + stream.randrange(26)) for _ in range(2 * num_tokens))


@dataclass(frozen=True, slots=True)
class Asking:
    """Requests of a kind (see `_KINDS`), of `output_tokens` each. `seed`: another one, other questions."""

    kind: str
    output_tokens: int
    seed: str = ""

    def parts(self, number: int) -> list[str | int]:
        """Texts, and the number of the picture where one stands."""
        question = _letters(f"{self.kind}/{self.seed}/{number}", _QUESTION_TOKENS)
        if self.kind == "text":
            return [_letters(f"{self.seed}/{number}", PICTURE_TOKENS + _QUESTION_TOKENS)]
        parts: dict[str, list[str | int]] = {
            "new": [number, question],
            "known": [0, question],
            "moved": [question, 0, question],
            "short": [question],
        }
        return parts[self.kind]

    def request(self, form: WireForm, number: int) -> bytes:
        """The body of request `number`."""
        content = [
            {"type": "text", "text": part}
            if isinstance(part, str)
            else {"type": "image_url", "image_url": {"url": data_url(_jpeg(part))}}
            for part in self.parts(number)
        ]
        body = form.body([], self.output_tokens) | {"messages": [{"role": "user", "content": content}]}
        return json.dumps(body).encode()


def _body(_ids: list[int], length: int) -> dict[str, object]:
    return {"model": "bench", "max_tokens": length, "temperature": 0, "ignore_eos": True, "stream": True}


def _has_text(line: bytes) -> bool:
    """True for the lines that carry output: the first event may come before the picture was looked at."""
    if not line.startswith(b"data: {"):
        return False
    event = json.loads(line[6:])
    return "error" in event or any(choice["delta"].get("content") for choice in event.get("choices", []))


CHAT = WireForm("/v1/chat/completions", _body, _has_text)


# --- who is asked -----------------------------------------------------------------------------------------------------


class Contender(Protocol):
    """Somebody who answers requests with pictures."""

    name: str

    def first_token_s(self, asking: Asking, number: int) -> float:
        """Seconds to the first token of a request that is alone."""
        ...

    def all_s(self, asking: Asking, numbers: Sequence[int]) -> float:
        """Seconds to the end of all these requests, sent at once."""
        ...


@dataclass(slots=True)
class HttpContender:
    """A server."""

    process: ServerProcess
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.process.name

    def first_token_s(self, asking: Asking, number: int) -> float:
        """See `Contender`."""
        return asyncio.run(self._first_token_s(asking, number))

    async def _first_token_s(self, asking: Asking, number: int) -> float:
        timing = await ask(self.process.url, CHAT, asking, number)
        if timing.error:
            raise LoadFailed(f"{self.name}: {timing.error}")
        return timing.token_times_s[0] - timing.start_s

    def all_s(self, asking: Asking, numbers: Sequence[int]) -> float:
        """See `Contender`."""

        async def send() -> float:
            begin_s = time.perf_counter()
            await asyncio.gather(*(self._first_token_s(asking, number) for number in numbers))
            return time.perf_counter() - begin_s

        return asyncio.run(send())

    def gaps(self, num_streams: int, quiet_s: float, phases: dict[str, list[int]], seed: str) -> dict[str, list[float]]:
        """The gaps between tokens of streams that decode: "quiet", while the requests of each kind were answered, and
        "tower", while a new picture was embedded, as far as that can be told.

        `phases`: the numbers of the requests of each kind, which are sent one after the other.
        """
        return asyncio.run(self._gaps(num_streams, quiet_s, phases, seed))

    async def _gaps(
        self, num_streams: int, quiet_s: float, phases: dict[str, list[int]], seed: str
    ) -> dict[str, list[float]]:
        times: list[list[float]] = [[] for _ in range(num_streams)]
        asking = Asking("short", _STREAM_TOKENS, seed)
        began = asyncio.Event()

        def noting(stream: list[float]) -> Callable[[int], None]:
            def note(_count: int) -> None:
                stream.append(time.perf_counter())
                if min(map(len, times)) > 2:
                    began.set()

            return note

        tasks = [
            asyncio.create_task(ask(self.process.url, CHAT, asking, n, noting(stream)))
            for n, stream in enumerate(times)
        ]
        windows: dict[str, list[tuple[float, float]]] = {}
        try:
            await asyncio.wait_for(began.wait(), 120)
            begin_s = time.perf_counter()
            await asyncio.sleep(quiet_s)
            windows["quiet"] = [(begin_s, time.perf_counter())]
            for kind, numbers in phases.items():
                windows[kind] = []
                for number in numbers:
                    begin_s = time.perf_counter()
                    await self._first_token_s(Asking(kind, 1, seed), number)
                    windows[kind].append((begin_s, time.perf_counter()))
            if any(task.done() for task in tasks):
                raise LoadFailed(f"{self.name}: a stream ended before its gaps were measured")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if embedding := tower_windows(windows["new"], windows["moved"]):
            windows["tower"] = embedding
        return {kind: list(gaps_in(times, windows[kind])) for kind in windows}


def tower_windows(new: list[tuple[float, float]], moved: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """When a tower computed: the time of a new picture without the longest that a prompt with a known one took."""
    prompt_s = max(end - begin for begin, end in moved)
    return [(begin, end - prompt_s) for begin, end in new if end - prompt_s > begin]


def gaps_in(times: list[list[float]], windows: list[tuple[float, float]]) -> Iterator[float]:
    """The gaps that lie in one of the windows, in part at least."""
    for stream in times:
        for a, b in itertools.pairwise(stream):
            if any(a < end and b > begin for begin, end in windows):
                yield b - a


@dataclass(slots=True)
class GenaiContender:
    """OpenVINO GenAI's pipeline."""

    process: JsonWorker
    name: str = "OpenVINO GenAI (int8)"

    def first_token_s(self, asking: Asking, number: int) -> float:
        """See `Contender`."""
        return self._run(asking, [number])["first_s"]

    def all_s(self, asking: Asking, numbers: Sequence[int]) -> float:
        """See `Contender`."""
        return self._run(asking, numbers)["all_s"]

    def _run(self, asking: Asking, numbers: Sequence[int]) -> dict[str, float]:
        requests = []
        for number in numbers:
            parts = asking.parts(number)
            text = "".join(part if isinstance(part, str) else "<ov_genai_image_0>\n" for part in parts)
            pictures = [base64.b64encode(_jpeg(part)).decode() for part in parts if isinstance(part, int)]
            requests.append((text, *pictures, "")[:2])
        return self.process.ask({"requests": requests, "output_tokens": asking.output_tokens})


# --- measuring --------------------------------------------------------------------------------------------------------


def measure_round(contender: Contender, asked: argparse.Namespace, number: int) -> dict[str, Any]:
    """One contender's turn."""
    first = 1 + number * 1000  # pictures that nobody has seen
    result: dict[str, Any] = {"first_token_ms": {}}
    contender.first_token_s(Asking("new", 1, f"warm-up {number}"), 0)  # what `known` and `moved` know
    for kind in _KINDS:
        asking = Asking(kind, 1, str(number))
        result["first_token_ms"][kind] = [
            1000 * contender.first_token_s(asking, first + i) for i in range(asked.repeats)
        ]
    numbers = range(first + asked.repeats, first + asked.repeats + asked.pictures)
    result["pictures_per_s"] = asked.pictures / contender.all_s(Asking("new", 8, str(number)), numbers)
    if isinstance(contender, HttpContender):
        unseen = range(numbers.stop, numbers.stop + asked.gap_pictures)
        phases = {"new": list(unseen), "moved": list(unseen)}
        gaps = contender.gaps(asked.streams, asked.quiet_s, phases, str(number))
        result["gaps_ms"] = {kind: [1000 * gap for gap in found] for kind, found in gaps.items()}
    return result


def fold(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds; gaps of all rounds together."""
    folded: dict[str, Any] = {
        "first_token_ms": {
            kind: statistics.median(ms for one in rounds for ms in one["first_token_ms"][kind]) for kind in _KINDS
        },
        "pictures_per_s": statistics.median(one["pictures_per_s"] for one in rounds),
    }
    if "gaps_ms" in rounds[0]:
        folded["gaps_ms"] = {}
        for kind in rounds[0]["gaps_ms"]:
            gaps = [gap for one in rounds for gap in one["gaps_ms"][kind]]
            folded["gaps_ms"][kind] = {
                "p50": statistics.median(gaps),
                "p99": percentile(gaps, 0.99),
                "longest": max(gaps),
                "count": len(gaps),
            }
    return folded


def tell(results: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The results in lines for people, ratios to the first contender."""
    ours = next(iter(results.values()))
    for name, result in results.items():
        yield name
        for kind, ms in result["first_token_ms"].items():
            yield f"    first token, {kind:6} {ms:8.0f} ms, {ms / ours['first_token_ms'][kind]:.2f} times ours"
        rate = result["pictures_per_s"]
        yield f"    {rate:.2f} pictures/s, ours is {ours['pictures_per_s'] / rate:.2f} times that"
        if "gaps_ms" in result:
            quiet = result["gaps_ms"]["quiet"]["p50"]
            for kind, gaps in result["gaps_ms"].items():
                p99 = gaps["p99"]
                yield f"    gaps, {kind:6} median {gaps['p50']:6.0f} ms, p99 {p99:6.0f}, longest {gaps['longest']:6.0f}"
                yield f"        of {gaps['count']}; p99 by the quiet median {p99 / quiet:.2f}"


# --- what is started --------------------------------------------------------------------------------------------------


def prepare(directory: Path, root: Path) -> None:
    """Write the files that are missing, for the peers that are installed. Raises: CalledProcessError, ImportError."""
    tower, decoder = TowerShape(), BenchShape()
    if not (directory / "model.safetensors").exists():
        write_picture_model(directory, tower, decoder)
    if peers.llamacpp_binary(root).exists() and not (directory / "model-Q8_0.gguf").exists():
        write_mmproj(directory, tower, decoder.hidden_size, "Q8_0")
        write_gguf(directory, decoder, "Q8_0")
    exporter = peers.python_of(root, "optimum")
    if exporter.exists() and not _exported(directory).exists():
        command = [str(exporter.parent / "optimum-cli"), "export", "openvino", "--model", str(directory)]
        command += ["--task", "image-text-to-text", "--weight-format", "int8", str(_exported(directory).parent)]
        subprocess.run(command, check=True)


def _exported(directory: Path) -> Path:
    return directory / "openvino" / "openvino_language_model.xml"


def contenders(directory: Path, asked: argparse.Namespace, stack: ExitStack, missing: dict[str, str]) -> list[Any]:
    """All that run, stopped until their turn; who does not is in `missing`, with the reason."""
    logs, root = directory / "logs", asked.peers
    found: list[Any] = []

    def add(name: str, start: Callable[[], Any]) -> None:
        try:
            contender = start()
        except (ProcessFailed, OSError) as error:
            missing[name] = str(error)
            return
        if contender is None:
            missing[name] = "is not installed"
            return
        stack.enter_context(contender.process)
        contender.process.pause()
        found.append(contender)

    def llamacpp() -> HttpContender | None:
        more = ["--mmproj", str(directory / "mmproj-Q8_0.gguf"), "--jinja"]
        more += ["--chat-template-file", str(directory / "plain.jinja"), "--reasoning-format", "none"]
        slots = max(asked.pictures, asked.streams + 1)
        server = peers.llamacpp_server(root, directory / "model-Q8_0.gguf", slots, _SLOT_TOKENS, *more)
        return None if server is None else HttpContender(ServerProcess(server, logs))

    def genai() -> GenaiContender | None:
        python = peers.python_of(root, "genai")
        if not python.exists() or not _exported(directory).exists():
            return None
        command = [str(python), "-m", "benchmarks.serving.genai_pictures", str(_exported(directory).parent)]
        return GenaiContender(JsonWorker("OpenVINO GenAI", command, logs))

    server = peers.dragoman_server(directory, directory / "graphs")
    add("dragoman", lambda: HttpContender(ServerProcess(server, logs)))
    add("llama.cpp", llamacpp)
    add("OpenVINO GenAI", genai)
    return found


@contextmanager
def model_directory(path: Path | None) -> Iterator[Path]:
    """The directory that was named, or one that is gone afterwards."""
    if path is not None:
        yield path
        return
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def run(directory: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Measure all in turn."""
    missing: dict[str, str] = {}
    rounds: dict[str, list[dict[str, Any]]] = {}
    with ExitStack() as stack:
        running = contenders(directory, asked, stack, missing)
        for number in range(asked.rounds):
            for contender in running:
                if contender.name in missing:
                    continue
                try:
                    with contender.process.awake():
                        rounds.setdefault(contender.name, []).append(measure_round(contender, asked, number))
                except (ProcessFailed, LoadFailed) as error:
                    missing[contender.name] = str(error)
                    rounds.pop(contender.name, None)
    return {"missing": missing, "results": {name: fold(each) for name, each in rounds.items()}}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What pictures cost, beside other servers.")
    parser.add_argument("--model", type=Path, metavar="DIR", help="where the model's files are kept")
    parser.add_argument("--peers", type=Path, default=peers.DEFAULT_ROOT, metavar="DIR")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3, help="requests of a kind in a round, one at a time")
    parser.add_argument("--pictures", type=int, default=8, help="sent at once")
    parser.add_argument("--streams", type=int, default=4, help="whose gaps are measured")
    parser.add_argument("--gap-pictures", type=int, default=4, help="sent one after the other beside the streams")
    parser.add_argument("--quiet-s", type=float, default=4.0, help="seconds in which the streams are alone")
    asked = parser.parse_args()
    with model_directory(asked.model) as directory:
        prepare(directory, asked.peers)
        result = run(directory, asked)
    for name, reason in result["missing"].items():
        sys.stdout.write(f"missing: {name}: {reason}\n")
    sys.stdout.write("".join(f"{line}\n" for line in tell(result["results"])) + json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
