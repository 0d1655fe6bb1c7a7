"""The latest gauges of vLLM's scheduler, as one of vLLM's loggers. Called on the event loop, read on any thread."""

from __future__ import annotations

from typing import Any


class Gauges:
    """The running sequences, the share of the cache in use (0 to 1) and the preemptions of all of vLLM's schedulers."""

    def __init__(self) -> None:
        self._running: dict[int, int] = {}
        self._usage: dict[int, float] = {}
        self.num_preemptions = 0

    @property
    def num_running(self) -> int:
        return sum(self._running.values())

    @property
    def usage(self) -> float:
        return sum(self._usage.values()) / max(1, len(self._usage))

    def __call__(self, vllm_config: Any, engine_index: int = 0) -> Gauges:
        """This object, which watches all engines; vLLM calls it as a factory of loggers."""
        return self

    def record(self, scheduler_stats: Any, iteration_stats: Any, engine_idx: int = 0, **others: Any) -> None:
        if scheduler_stats is not None:
            self._running[engine_idx] = scheduler_stats.num_running_reqs
            self._usage[engine_idx] = scheduler_stats.kv_cache_usage
        if iteration_stats is not None:
            self.num_preemptions += iteration_stats.num_preempted_reqs

    def log(self) -> None: ...

    def log_engine_initialized(self) -> None: ...

    def record_sleep_state(self, is_awake: int, level: int) -> None: ...
