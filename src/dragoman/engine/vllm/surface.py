"""The only module that imports the package vllm, inside functions. On the threads that load and build."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from math import prod
from multiprocessing import resource_tracker
from typing import Any, NoReturn, Protocol

from dragoman.cores import Topology, read_topology
from dragoman.engine.vllm.arguments import command_words
from dragoman.engine.vllm.pictures import PlacedPicture, PreparedPicture
from dragoman.models.vision.pixels import as_image
from dragoman.types import Picture

ENVIRONMENT = {
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork would lose this process's threads
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # standard output belongs to the server
}
"""Variables that vLLM reads, where the operator has not set them."""

_CORES = "VLLM_CPU_OMP_THREADS_BIND"
_DEGREES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
_IMAGE = "image"
_GREY = Picture(64, 64, bytes([128]) * (3 * 64 * 64), "")


class AsyncEngine(Protocol):
    @property
    def errored(self) -> bool: ...

    @property
    def renderer(self) -> Any: ...

    def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, *, lora_request: Any = None, priority: int = 0
    ) -> AsyncGenerator[Any, None]: ...

    async def add_lora(self, lora_request: Any) -> bool: ...

    async def remove_lora(self, lora_id: int) -> bool: ...

    async def collective_rpc(self, method: str, *, args: tuple[Any, ...]) -> list[Any]: ...

    def shutdown(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Surface:
    """Constructors of vLLM's objects for requests, and its errors.

    `make_params`: (arguments, Lark of a grammar or None) -> SamplingParams of one sequence, with outputs per step.
    `make_prompt`: (token ids, salt or None, pictures) -> a prompt. `make_adapter`: (name, number, directory) -> an
    adapter. `refusals`: errors of the request. `overflows`: too many requests. `dead`: its processes have ended.
    """

    make_params: Callable[[Mapping[str, Any], str | None], Any]
    make_prompt: Callable[[list[int], str | None, Sequence[PlacedPicture]], Any]
    make_adapter: Callable[[str, int, str], Any]
    refusals: tuple[type[Exception], ...]
    overflows: tuple[type[Exception], ...]
    dead: tuple[type[Exception], ...]


def import_surface() -> Surface:
    """Import vLLM's parts for requests. Takes seconds the first time. Raises: ImportError."""
    _prepare()
    from torch import tensor
    from vllm.exceptions import GracefulHTTPError, VLLMClientError
    from vllm.inputs import mm_input, tokens_input
    from vllm.lora.request import LoRARequest
    from vllm.multimodal.inputs import MultiModalKwargsItems, PlaceholderRange
    from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams
    from vllm.v1.engine.exceptions import EngineDeadError

    def make_params(arguments: Mapping[str, Any], lark: str | None) -> Any:
        structured = None if lark is None else StructuredOutputsParams(grammar=lark)
        return SamplingParams(
            **arguments, structured_outputs=structured, output_kind=RequestOutputKind.DELTA, skip_clone=True
        )

    def make_prompt(token_ids: list[int], salt: str | None, pictures: Sequence[PlacedPicture]) -> Any:
        if not pictures:
            return tokens_input(token_ids, cache_salt=salt)
        places = [PlaceholderRange(begin, len(picture.token_ids), tensor(picture.takes)) for picture, begin in pictures]
        items = MultiModalKwargsItems({_IMAGE: [picture.item for picture, _ in pictures]})
        digests = {_IMAGE: [picture.digest for picture, _ in pictures]}
        return mm_input(token_ids, items, digests, {_IMAGE: places}, cache_salt=salt)

    return Surface(make_params, make_prompt, LoRARequest, (VLLMClientError,), (GracefulHTTPError,), (EngineDeadError,))


async def prepare_picture(llm: AsyncEngine, picture: Picture) -> PreparedPicture:
    """The picture, prepared and cached by vLLM on its own thread. Raises: as vLLM does.

    The cache in its other processes is skipped: a request that ends before its picture is computed would corrupt it.
    """
    alone = _alone(llm, await asyncio.to_thread(as_image, picture))
    (made,) = await llm.renderer.render_cmpl_async([alone], skip_mm_cache=True)
    (place,) = made["mm_placeholders"][_IMAGE]
    takes = [True] * place.length if place.is_embed is None else place.is_embed.tolist()
    inner = slice(takes.index(True), len(takes) - takes[::-1].index(True))
    token_ids = made["prompt_token_ids"][place.offset : place.offset + place.length]
    return PreparedPicture(
        tuple(token_ids[inner]), tuple(takes[inner]), made["mm_hashes"][_IMAGE][0], made["mm_kwargs"][_IMAGE][0]
    )


def try_picture(llm: AsyncEngine) -> None:
    """Have vLLM prepare a small grey picture on this thread. Raises: as vLLM does."""
    llm.renderer.render_cmpl([_alone(llm, as_image(_GREY))], skip_mm_cache=True)


def _alone(llm: AsyncEngine, image: Any) -> dict[str, Any]:
    text = llm.renderer.get_mm_processor().dummy_inputs.get_dummy_text({_IMAGE: 1})
    return {"prompt_token_ids": llm.renderer.get_tokenizer().encode(text), "multi_modal_data": {_IMAGE: [image]}}


def why_blind(llm: AsyncEngine, model: Any) -> str:
    """The reason why vLLM takes no pictures for that configuration, "" if it does."""
    processor = llm.renderer.mm_processor
    if processor is None or not processor.info.allowed_mm_limits.get(_IMAGE, 0):
        return "vLLM takes none for this model"
    if is_on_cpu() and model.is_mm_prefix_lm:  # vLLM would still compute them
        return "a picture's tokens see each other in this model, and only earlier ones in vLLM on a processor"
    return ""


def argument_names() -> frozenset[str]:
    """The names of vLLM's engine arguments. Raises: ImportError."""
    _prepare()
    from vllm.engine.arg_utils import AsyncEngineArgs

    return frozenset(field.name for field in fields(AsyncEngineArgs) if not field.name.startswith("_"))


def parse_argument(name: str, text: str) -> Any:
    """The value of an engine argument, parsed by vLLM's command line. Raises: ValueError with one line."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):  # type: ignore[misc]
        """Raises errors instead of ending the process."""

        def error(self, message: str) -> NoReturn:
            raise ValueError(" ".join(message.split()))

    parser = AsyncEngineArgs.add_cli_args(Parser(add_help=False))
    action = next((candidate for candidate in parser._actions if candidate.dest == name), None)
    if action is None:
        raise ValueError("cannot be given as a text")
    is_switch = isinstance(action, argparse.BooleanOptionalAction)
    words = command_words(name, text, is_switch=is_switch, is_list=action.nargs in ("+", "*"))
    return getattr(parser.parse_args(words), name)


def is_on_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def device_name() -> str:
    from vllm.platforms import current_platform

    return str(current_platform.device_name)


def count_devices() -> int:
    """The GPUs that vLLM sees, at least 1."""
    from vllm.platforms import current_platform

    with contextlib.suppress(NotImplementedError):
        return max(1, 0 if current_platform.is_cpu() else int(current_platform.device_count()))
    return 1


def start_engine(arguments: Mapping[str, Any], watcher: Any) -> tuple[AsyncEngine, Any]:
    """vLLM's engine with its model loaded, and its configuration. Blocks until then.

    `watcher`: a factory of loggers for vLLM. Raises: any error of vLLM.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    with _without_interrupts(), _with_cores(_division(arguments)):
        llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments), stat_loggers=[watcher])
    return llm, llm.vllm_config


def _division(arguments: Mapping[str, Any]) -> str | None:
    """The cores that we assign to vLLM's processes on a processor; None = vLLM chooses."""
    try:
        return divide(arguments, read_topology()) if is_on_cpu() else None
    except AttributeError:  # not on Linux
        return None


def divide(arguments: Mapping[str, Any], topology: Topology) -> str | None:
    """The value of VLLM_CPU_OMP_THREADS_BIND for these engine arguments; None if each process has a memory node.

    vLLM gives each process of a spread model a node, and does not start where there are fewer nodes than processes.
    Every process gets equally many neighbouring cores, one thread each. With fewer cores than processes it is "nobind".
    Source: vLLM's documentation of its backend for processors.
    """
    num_processes = prod(int(arguments.get(name) or 1) for name in _DEGREES)
    if num_processes <= len(topology.nodes):
        return None
    count = len(topology.physical) // num_processes
    if not count:
        return "nobind"
    threads = [str(max(siblings)) for siblings in topology.physical]
    return "|".join(",".join(threads[i * count : (i + 1) * count]) for i in range(num_processes))


@contextlib.contextmanager
def _with_cores(division: str | None) -> Iterator[None]:
    """Set the cores of processes started within, unless the operator has chosen; None = vLLM chooses."""
    if division is None or _CORES in os.environ:
        yield
        return
    os.environ[_CORES] = division
    try:
        yield
    finally:
        os.environ.pop(_CORES, None)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Block SIGINT in processes started within, and in theirs: a terminal sends it to all of them at Ctrl+C.

    vLLM ends them by SIGTERM once requests have finished. multiprocessing's tracker unblocks the signal when it starts,
    so it is started before.
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
