"""Modules that a streamed completion passes through in a warm server.

Does: trace one, and write the list in docs/architecture.md. Does not: limit it; `report` says when there are too many.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import httpx

from dragoman.cli.arguments import read_arguments
from dragoman.compose import build_served_model
from dragoman.config.resolve import demo_model_dir, resolve
from dragoman.server.app import ServerConfig
from dragoman.server.registry import ModelRegistry
from dragoman.server.run import HttpServer, ListenConfig, loop_factory
from tests.support.patience import PATIENCE_S
from tests.support.real_dialects import real_dialects

MOST_MODULES = 45  # as docs/architecture.md has it: a reader has to be able to follow a request
PAGE = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"
BLOCK = re.compile(r"(?<=## The modules on a request's way\n).*?```\n(?P<lines>.*?)```", re.DOTALL)
COUNTS = re.compile(r"\d+ modules, \d+ of\s+them")
BODY = {"model": "demo", "prompt": "What is deep learning?", "max_tokens": 8, "temperature": 0, "stream": True}


class Touched:
    """The modules of the package whose functions were called on threads that began while it watched.

    What dataclasses write for themselves does not count: no line of any module runs in it.
    """

    def __init__(self) -> None:
        self._modules: set[str] = set()
        self._is_recording = False

    def by(self, work: Callable[[], None]) -> set[str]:
        """Run `work`; the modules of what is called meanwhile."""
        self._modules = set()
        self._is_recording = True
        work()
        self._is_recording = False
        return self._modules

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the threads that begin meanwhile, to their ends."""
        threading.setprofile(self._note)
        try:
            yield
        finally:
            threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        if self._is_recording and event == "call":
            name = frame.f_globals.get("__name__", "")
            if name.startswith("dragoman.") and frame.f_code.co_filename.endswith(".py"):
                self._modules.add(name)


class DemoServer:
    """A server of the demo model on a thread of its own."""

    def __init__(self, cache_dir: Path) -> None:
        arguments = read_arguments(["--dtype", "f32", "--cache-dir", str(cache_dir), "--speculation", "off"])
        self._config = resolve(arguments.givens, {}, demo_model_dir())
        self.registry = ModelRegistry(real_dialects(name="demo"), ["demo"])
        self._http = HttpServer(self.registry, ServerConfig(), ListenConfig(port=0), self._load, self._on_listening)
        self._is_ready = threading.Event()
        self._port = 0
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        """Return once the model is served."""
        self._thread.start()
        assert self._is_ready.wait(60), "the demo model was not loaded"

    def stop(self) -> None:
        """Return once the server has ended."""
        self._http.stop()
        self._thread.join(PATIENCE_S)

    def stream(self) -> None:
        """Send a streamed completion, and return once nothing of it is left."""
        with httpx.stream("POST", f"http://127.0.0.1:{self._port}/v3/completions", json=BODY, timeout=60) as answer:
            assert b"".join(answer.iter_bytes()).endswith(b"data: [DONE]\n\n")
        (model,) = self.registry.models
        while model.admission.num_in_flight:
            pass

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(self._http.serve())

    def _on_listening(self, host: str, port: int) -> None:
        self._port = port

    async def _load(self, registry: ModelRegistry) -> None:
        registry.add((await build_served_model(self._config, lambda stage, fraction: None)).served)
        registry.mark_ready()
        self._is_ready.set()


def as_lines(modules: set[str]) -> str:
    """The modules by package, in alphabetical order."""
    by_package: defaultdict[str, list[str]] = defaultdict(list)
    for module in sorted(modules):
        package, _, name = module.rpartition(".")
        by_package[package].append(name)
    width = max(map(len, by_package))
    return "".join(f"{package:<{width}}  {' '.join(names)}\n" for package, names in sorted(by_package.items()))


def touched_modules(cache_dir: Path) -> set[str]:
    """The modules with a function that runs for one streamed completion, in a server that has answered one before."""
    touched = Touched()
    with touched.watching():
        server = DemoServer(cache_dir)
        server.start()
        try:
            server.stream()
            ways = [touched.by(server.stream) for _ in range(2)]
        finally:
            server.stop()
    return set.intersection(*ways)  # what runs now and then beside them is of no request


def write_page(modules: set[str]) -> None:
    """Replace the list in docs/architecture.md, and its two counts. Raises: ValueError without such a section."""
    text = PAGE.read_text(encoding="utf-8")
    found = BLOCK.search(text)
    if found is None:
        raise ValueError(f"{PAGE} has no section with the modules on a request's way")
    before, start, end = text[: found.start()], *found.span("lines")
    num_of_server = sum(module.startswith("dragoman.server.") for module in modules)
    told = COUNTS.sub(f"{len(modules)} modules, {num_of_server} of them", text[found.start() : start])
    PAGE.write_text(before + told + as_lines(modules) + text[end:], encoding="utf-8")
