"""Runs `dragoman warm`: computes beginnings of prompts into the store on disk in advance. The engine writes to the disk.

Requests go through the APIs' own dialects, template and tokenizer, and belong to their callers. So blocks have the
names that a server's requests look for. Called by `main`, on the main thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dragoman.batch.files import numbered_lines
from dragoman.cli.commands import FAILED
from dragoman.cli.local_app import local_model
from dragoman.cli.subcommand import Console
from dragoman.cli.warm import WarmArguments
from dragoman.config.resolve import Config, ConfigError
from dragoman.errors import EngineDead, ServerError
from dragoman.host.settings import server_config
from dragoman.hub.download import size_text
from dragoman.models import ModelError
from dragoman.server.api import HttpCall
from dragoman.server.apis.openai.api import ROUTES
from dragoman.server.observation.record import CallRecord, enter_call
from dragoman.server.registry import ServedModel

HAS_ERRORS = 3
_SETTLED_S = 0.5  # without a write for this long, a file's prompts are on the disk

_numbers = count(1)


class WarmError(Exception):
    """Nothing can be computed; one line with the reason."""


FAILURES = (ConfigError, ModelError, ServerError, WarmError, OSError)


@dataclass(slots=True)
class _Told:
    prompts: int = 0
    tokens: int = 0
    found: int = 0
    seconds: float = 0.0
    errors: int = 0


def run(config: Config, arguments: WarmArguments, console: Console) -> int:
    """Compute the files' prompts. Returns the exit code: 0, 3 after some failures, 1 if nothing was computed."""
    return asyncio.run(_warm(config, arguments, _callers(config, arguments), console))


def _callers(config: Config, arguments: WarmArguments) -> tuple[str, ...]:
    """The callers whose prompts are warmed. Raises: WarmError, ConfigError."""
    keyring = server_config(config).read_keys()
    names = () if keyring is None else keyring.names
    unknown = [name for name in arguments.key if name not in names]
    if unknown:
        allowed = f"one of {', '.join(names)}" if names else "left out: the server has no keys"
        raise WarmError(f"--key={unknown[0]} (command line): must be {allowed}")
    if not config.engine.prefix_cache_per_key:
        return arguments.key[:1] or ("",)
    if not arguments.key and len(names) > 1:
        raise WarmError(
            f"--key: required, because each key finds only its own prompts: must be one of {', '.join(names)}"
        )
    return arguments.key or names or ("",)


async def _warm(config: Config, arguments: WarmArguments, callers: Sequence[str], console: Console) -> int:
    num_errors = num_computed = 0
    async with local_model(config, console.display) as served:
        if not served.engine.capabilities.cache_keep:
            raise WarmError(_why_not(config))
        before_s = time.perf_counter()
        for path in arguments.files:
            written = _written(served)
            tally = await _read(served, path, callers, console)
            await _settle(served)
            console.stdout.write(f"{path}: {_text(tally, _written(served) - written)}\n")
            console.stdout.flush()
            num_errors += tally.errors
            num_computed += tally.prompts
        seconds = time.perf_counter() - before_s
    console.stdout.write(f"{size_text(_written(served))} written, {seconds:.1f} s\n")
    if not num_errors:
        return 0
    return HAS_ERRORS if num_computed else FAILED


def _why_not(config: Config) -> str:
    if config.engine.engine != "rolling":
        return f"--engine={config.engine.engine}: keeps no prompts on disk; must be rolling"
    if config.engine.prefix_store_gb is None:
        return "--prefix-store-gb: is needed, as the server has it; must be a number > 0"
    if config.engine.prefix_cache == "off":
        return "--prefix-cache=off: keeps no prompts; must be auto, prompt or all"
    return f"{config.name}: has no prompts that could be kept; must be a model that generates"


async def _read(served: ServedModel, path: Path, callers: Sequence[str], console: Console) -> _Told:
    tally, begin_s = _Told(), time.perf_counter()
    for place, name, body in _bodies(path):
        for caller in callers:
            try:
                num_tokens, num_found = await asyncio.create_task(_computed(served, name, body, caller))
            except EngineDead:
                raise
            except ServerError as error:
                tally.errors += 1
                console.tell(f"{place}: {error.message}")
                break
            tally.prompts, tally.tokens, tally.found = (
                tally.prompts + 1,
                tally.tokens + num_tokens,
                tally.found + num_found,
            )
    tally.seconds = time.perf_counter() - begin_s
    return tally


def _bodies(path: Path) -> Iterator[tuple[str, str, bytes]]:
    """The (place, dialect, body) of each prompt in a file. Raises: OSError."""
    if path.suffix != ".jsonl":
        text = path.read_bytes().decode("utf-8", "replace")
        yield str(path), ROUTES.completions, msgspec.json.encode({"prompt": text})
        return
    for number, line in numbered_lines(path):
        yield f"{path} line {number}", ROUTES.chat, line


async def _computed(served: ServedModel, name: str, body: bytes, caller: str) -> tuple[int, int]:
    """The number of tokens of a prompt, and of those found in the cache. Raises: ServerError."""
    call_id = f"warm-{next(_numbers)}"
    enter_call(CallRecord(call_id, "warm", "", caller=caller))
    http = HttpCall("POST", "", body, {"content-type": "application/json"}, request_id=call_id)
    call = await asyncio.to_thread(served.dialects[name].open(http).parse)
    [request] = call.requests
    # Only the prompt: options of the answer do not change it.
    plain = replace(request.sampling, n=1, best_of=None, num_beams=1, grammar=None, logprobs=None, prompt_logprobs=None)
    request = replace(request, sampling=plain, max_tokens=0, stop=(), parse_tool_calls=False, parse_reasoning=False)
    result = await served.service.generate(request)
    return len(result.prompt.token_ids), result.prompt.num_cached_tokens


def _written(served: ServedModel) -> int:
    return served.engine.stats().num_stored_written_bytes or 0


async def _settle(served: ServedModel) -> None:
    """Wait until the computed prompts are probably on the disk."""
    last, since_s = _written(served), time.monotonic()
    while time.monotonic() < since_s + _SETTLED_S:
        await asyncio.sleep(_SETTLED_S / 10)
        if (now := _written(served)) != last:
            last, since_s = now, time.monotonic()


def _text(tally: _Told, num_bytes: int) -> str:
    prompts = f"{tally.prompts} prompts, " if tally.prompts != 1 else ""
    errors = f", {tally.errors} with errors" if tally.errors else ""
    return (
        f"{prompts}{tally.tokens} tokens, {tally.found} of them found, {tally.seconds:.1f} s, "
        f"{size_text(num_bytes)} written{errors}"
    )
