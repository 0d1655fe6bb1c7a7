"""A service in virtual time: the engine's step loop over steps that have known costs, asked as a server is."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dragoman.engine.rolling.blocks.block_manager import CachePool
from dragoman.engine.rolling.core import AbortRequest, EngineCore
from dragoman.engine.rolling.forward.runner import ForwardBatch, StepWork
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sequence import AddRequest
from dragoman.engine.rolling.step_log import LoggedStep
from dragoman.tools.plan.calibrate import Answer
from dragoman.tools.plan.costs import StepCosts
from dragoman.tools.plan.simulate import CostRunner, Replica, VirtualTime
from dragoman.tools.plan.workload import GREEDY
from dragoman.types import EngineOutput, EngineRequest

_NUM_BLOCKS = 2000


class _LoggingRunner(CostRunner):
    """Keeps the work of its last pass."""

    _work: StepWork | None = None

    def forward(self, batch: ForwardBatch) -> npt.NDArray[np.float32]:
        self._work = StepWork.of(batch)
        return super().forward(batch)

    def take_work(self) -> StepWork | None:
        """None if there was no pass since the last call."""
        work, self._work = self._work, None
        return work


class VirtualService:
    """Answers whoever asks; `steps` are those that it took. `http_s`: tokens come so much later than the steps end."""

    def __init__(self, planned: Replica, costs: StepCosts, http_s: float = 0.0) -> None:
        self.time = VirtualTime()
        self.steps: list[LoggedStep] = []
        self.num_given_up = 0
        machine = replace(planned, pools=tuple(CachePool(_NUM_BLOCKS, pool.window) for pool in planned.pools))
        self._runner = _LoggingRunner(machine, costs, self.time)
        self._core = EngineCore(self._runner, Sampler(self._runner.vocab_size), planned.limits, clock=self.time)
        self._http_s = http_s
        self._dice = random.Random(0)
        self._answers: dict[int, tuple[Answer, asyncio.Future[Answer]]] = {}
        self._num_asked = 0
        self._loop: asyncio.Task[None] | None = None

    async def ask(self, prompt_tokens: int, output_tokens: int) -> Answer:
        """See `calibrate.Service`."""
        key = self._num_asked
        self._num_asked += 1
        ids = tuple(self._dice.randrange(2**31) for _ in range(prompt_tokens))
        self._core.inbox.put(AddRequest(key, EngineRequest(str(key), ids, GREEDY, output_tokens, seed=0)))
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answers[key] = Answer(self.time.now_s), done
        if self._loop is None or self._loop.done():
            self._loop = asyncio.create_task(self._run())
        try:
            return await done
        except asyncio.CancelledError:
            self.num_given_up += 1
            self._answers.pop(key, None)
            self._core.inbox.put(AbortRequest(key))
            raise

    async def _run(self) -> None:
        """Steps, as long as somebody waits for an answer."""
        while self._answers:
            begin_s = self.time.now_s
            deliveries = self._core.step()
            if (work := self._runner.take_work()) is not None:
                self.steps.append(LoggedStep(begin_s, self.time.now_s - begin_s, work))
            for key, item in deliveries:
                assert isinstance(item, EngineOutput)
                if key in self._answers:
                    self._note(key, item)
            await asyncio.sleep(0)

    def _note(self, key: int, output: EngineOutput) -> None:
        answer, done = self._answers[key]
        answer.token_s += [self.time.now_s + self._http_s] * len(output.token_ids)
        if output.finish_reason is not None and not done.done():
            del self._answers[key]
            if not self._answers:  # whoever is alone asks again when the last token is there
                self.time.now_s += self._http_s
            done.set_result(answer)
