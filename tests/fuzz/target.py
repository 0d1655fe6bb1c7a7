"""A real server whose engine is fast: every layer but the model's arithmetic is what users run.

Does: put the rolling engine over logits from a table behind real HTTP, with little context and a small cache, so that
requests end soon and wait for each other. Does not: judge.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import numpy as np
import numpy.typing as npt

from dragoman.engine.base import EngineTools
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.engine import RollingEngine
from dragoman.engine.rolling.forward.runner import ForwardBatch
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.grammar.compiler import compiler_for
from dragoman.server.generation.extensions import Extensions
from dragoman.server.generation.output_parsers import REASONING_FORMATS, OutputFormat
from dragoman.server.generation.service import Service
from dragoman.tokenizer.answer_watch import watch_answer
from dragoman.tokenizer.base import TokenPieces
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.tokenizer.hf_tokenizer import HfTokenizer
from dragoman.tokenizer.stop_strings import StopOnTokens
from tests.performance.runners import TableRunner
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.real_dialects import real_dialects
from tests.support.running_server import RunningServer

CONTEXT = 96
NUM_BLOCKS = 96
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{{ tools or '' }}{{ enable_thinking }}<think>"
)
THINKS = OutputFormat(reasoning=REASONING_FORMATS["think"])


class QuickRunner(TableRunner):
    """A table of logits, with little room; nothing is noted."""

    def __init__(self) -> None:
        super().__init__(NUM_BLOCKS)
        self.max_model_len = CONTEXT

    def forward(self, batch: ForwardBatch) -> npt.NDArray[np.float32]:
        """The logits of the wanted rows."""
        logits: npt.NDArray[np.float32] = self._logits[batch.input_ids[batch.logit_indices]]
        return logits


class Defects(logging.Handler):
    """What the server logs as an error: whatever status a client saw, somebody has to look at it."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it, with its traceback."""
        self.texts.append(logging.Formatter().format(record))


@dataclass
class Target:
    """The server and what is known of it."""

    server: RunningServer
    engine: RollingEngine
    defects: Defects = field(default_factory=Defects)

    def idle_state(self, patience_s: float = 20.0) -> dict[str, int]:
        """What is not zero once nobody asks for anything: {} if all of it is."""
        until = time.monotonic() + patience_s
        while True:
            health = self.engine.health()
            counts = {
                "running": health.num_running,
                "waiting": health.num_waiting,
                "blocks": health.num_used_blocks,
                "in flight": self.server.admission.num_in_flight,
            }
            left = {name: count for name, count in counts.items() if count}
            if not left or time.monotonic() > until:
                return left
            time.sleep(0.01)


def _tools(tokenizer: ByteTokenizer) -> EngineTools:
    pieces = TokenPieces(tokenizer)

    compiler = compiler_for(cast(HfTokenizer, tokenizer))
    return EngineTools(compiler, partial(StopOnTokens, pieces), watch_answer=partial(watch_answer, pieces))


@contextmanager
def running_target(*, has_hosting: bool = True) -> Iterator[Target]:
    """The server, serving the model `fake`. `has_hosting`: others come and go beside it, which only pretend to generate."""
    tokenizer = ByteTokenizer()
    tools = _tools(tokenizer)
    engine = RollingEngine(QuickRunner(), Sampler(262), RollingConfig(max_num_seqs=8, max_slowdown=0), (), tools)
    asyncio.run(engine.start())
    service = Service(
        name="fake",
        engine=engine,
        tokenizer=tokenizer,
        chat_template=ChatTemplate(TEMPLATE),
        extensions=Extensions(compile_grammar=tools.compile_grammar, find_thought=THINKS.thought_marks),
    )
    server = RunningServer(dialects=real_dialects(), has_hosting=has_hosting)
    server.service, server.engine = service, engine  # type: ignore[assignment]  # instead of the fakes
    target = Target(server, engine)
    logging.getLogger("dragoman").addHandler(target.defects)
    server.start()
    try:
        yield target
    finally:
        logging.getLogger("dragoman").removeHandler(target.defects)
        server.http.stop()
        server.http.stop()
        server.join()
