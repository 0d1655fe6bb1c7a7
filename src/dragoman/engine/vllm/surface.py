"""What is used of the package vllm, imported when it is needed and nowhere else.

Does: import it, prepare its environment, read texts as its command line does, start its engine. Does not: know requests or
options. Called by the factory, on the threads that load and build.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from multiprocessing import resource_tracker
from typing import Any, NoReturn, Protocol

from dragoman.engine.vllm.arguments import command_words

ENVIRONMENT = {
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # this process has threads, which a fork would cut off
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # standard output is the server's
    "VLLM_NO_USAGE_STATS": "1",  # nothing is sent anywhere
}
"""Variables that vLLM reads, where the operator has not set them."""


class AsyncEngine(Protocol):
    """vLLM's AsyncLLM, as far as it is used."""

    @property
    def errored(self) -> bool: ...

    def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, *, lora_request: Any = None, priority: int = 0
    ) -> AsyncGenerator[Any, None]: ...

    async def add_lora(self, lora_request: Any) -> bool: ...

    async def remove_lora(self, lora_id: int) -> bool: ...

    async def collective_rpc(self, method: str, *, args: tuple[Any, ...]) -> list[Any]: ...

    def shutdown(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Surface:
    """The words of vLLM that requests are put into, and the errors that come back.

    `make_params`: (arguments, Lark of a grammar or None) -> SamplingParams for one sequence; its outputs are what
    each step added. `make_prompt`: (token ids, salt or None) -> a prompt. `make_adapter`: (name, number, directory) -> an
    adapter. `refusals`: what is the request's fault. `overflows`: what says that there are too many. `dead`: that its
    processes have ended.
    """

    make_params: Callable[[Mapping[str, Any], str | None], Any]
    make_prompt: Callable[[list[int], str | None], Any]
    make_adapter: Callable[[str, int, str], Any]
    refusals: tuple[type[Exception], ...]
    overflows: tuple[type[Exception], ...]
    dead: tuple[type[Exception], ...]


def import_surface() -> Surface:
    """Import what requests need. Takes seconds the first time. Raises: ImportError."""
    _prepare()
    from vllm.exceptions import GracefulHTTPError, VLLMClientError
    from vllm.inputs import tokens_input
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams
    from vllm.v1.engine.exceptions import EngineDeadError

    def make_params(arguments: Mapping[str, Any], lark: str | None) -> Any:
        structured = None if lark is None else StructuredOutputsParams(grammar=lark)
        return SamplingParams(
            **arguments, structured_outputs=structured, output_kind=RequestOutputKind.DELTA, skip_clone=True
        )

    def make_prompt(token_ids: list[int], salt: str | None) -> Any:
        return tokens_input(token_ids, cache_salt=salt)

    return Surface(make_params, make_prompt, LoRARequest, (VLLMClientError,), (GracefulHTTPError,), (EngineDeadError,))


def argument_names() -> frozenset[str]:
    """The names of vLLM's engine arguments. Raises: ImportError."""
    _prepare()
    from vllm.engine.arg_utils import AsyncEngineArgs

    return frozenset(field.name for field in fields(AsyncEngineArgs) if not field.name.startswith("_"))


def parse_argument(name: str, text: str) -> Any:
    """The value of an engine argument, as vLLM's command line reads it. Raises: ValueError, one line, if it does not."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):  # type: ignore[misc]
        """Tells instead of ending the process."""

        def error(self, message: str) -> NoReturn:
            raise ValueError(" ".join(message.split()))

    parser = AsyncEngineArgs.add_cli_args(Parser(add_help=False))
    action = next((one for one in parser._actions if one.dest == name), None)
    if action is None:
        raise ValueError("cannot be given as a text")
    is_switch = isinstance(action, argparse.BooleanOptionalAction)
    words = command_words(name, text, is_switch=is_switch, is_list=action.nargs in ("+", "*"))
    return getattr(parser.parse_args(words), name)


def is_on_cpu() -> bool:
    """True if vLLM computes on the processor."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def device_name() -> str:
    """What vLLM computes on, for people: cpu, cuda, rocm and so on."""
    from vllm.platforms import current_platform

    return str(current_platform.device_name)


def count_devices() -> int:
    """The GPUs that vLLM sees, at least 1."""
    from vllm.platforms import current_platform

    with contextlib.suppress(NotImplementedError):
        return max(1, 0 if current_platform.is_cpu() else int(current_platform.device_count()))
    return 1


def start_engine(arguments: Mapping[str, Any], watcher: Any) -> tuple[AsyncEngine, Any]:
    """vLLM's engine, its processes started and its model loaded, with its configuration; blocks for as long as that takes.

    `watcher`: called as vLLM calls its factories of loggers. Raises: whatever vLLM raises.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    with _without_interrupts():
        llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments), stat_loggers=[watcher])
    return llm, llm.vllm_config


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes that are started meanwhile never get SIGINT, nor do theirs: a terminal sends it to all at Ctrl+C.

    They inherit the mask of this thread; vLLM ends them by SIGTERM, once requests have been finished. multiprocessing's
    tracker unblocks the signal when it starts, so it is started before.
    """
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare() -> None:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
