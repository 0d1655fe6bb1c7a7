"""Runs `dragoman plan`: the number of replicas for a rate of requests, and their performance, by simulation.

Takes the costs of steps from a file or a step log, or measures them in a `dragoman serve` that it starts and calls over
HTTP; `tools.plan` simulates. Called by `main`, on the main thread; requests run on an event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import cast

import msgspec

from dragoman.cli.plan import PlanArguments
from dragoman.cli.progress import ProgressDisplay, note_to
from dragoman.cli.subcommand import Console, cite, citing_option
from dragoman.config.resolve import Config, ConfigError
from dragoman.host.loading import check_rolling, citing, engine_setup, memory_needs
from dragoman.host.machine import available_memory_bytes
from dragoman.models import ModelError
from dragoman.models.fingerprint import model_fingerprint
from dragoman.tools.bench.answer import AnswerReader, Sample
from dragoman.tools.bench.client import HttpClient, NotHttp, read_target
from dragoman.tools.plan.calibrate import Answer, CalibrationFailed, Cases, ask_all, costs_of, duration_s, logged_steps
from dragoman.tools.plan.costs import CostsError, StepCosts, read_costs, write_costs
from dragoman.tools.plan.router import RouterKind
from dragoman.tools.plan.simulate import Replica, replica_of
from dragoman.tools.plan.sizing import Bounds, PlanError, Planner, plan_json, plan_text
from dragoman.tools.plan.workload import Workload

FAILURES = (ConfigError, ModelError, OSError, CalibrationFailed)

_POLL_S = 0.05
_END_LIMIT_S = 30.0

Note = Callable[[str], None]


def run(config: Config, arguments: PlanArguments, console: Console) -> int:
    console.tell(*(f"note: {notice}" for notice in config.notices))
    replica = replica_for(config)
    workload = Workload(
        rate=arguments.rate,
        prompt_tokens=arguments.prompt,
        output_tokens=arguments.output,
        num_requests=arguments.requests,
        prefix_tokens=arguments.shared_prefix,
        num_prefixes=arguments.prefixes,
    )
    try:
        with citing_option("costs", arguments.costs, CostsError):
            costs = _costs(config, arguments, replica, console.display, note_to(console.stderr))
            planner = Planner(replica, costs, workload, cast(RouterKind, arguments.router))
        found = planner.plan(Bounds(arguments.ttft, arguments.itl), arguments.replicas)
    except PlanError as error:
        raise ConfigError([f"{cite(error.option, getattr(arguments, error.option))}: {error}"]) from error
    about = (found, replica, costs.deviation, arguments.disk_gb_s * 1e9)
    console.stdout.write(plan_json(*about) if arguments.json else plan_text(config.name, *about))
    return 0


def replica_for(config: Config) -> Replica:
    check_rolling(config, ", whose scheduler is simulated")
    with citing(config):
        return replica_of(engine_setup(config), memory_needs(config), available_memory_bytes())


def _costs(
    config: Config, arguments: PlanArguments, replica: Replica, display: ProgressDisplay, note: Note
) -> StepCosts:
    """The costs from the file; or from a step log or a measurement, then kept in the file.

    Raises: CostsError for the file; ConfigError for the log; CalibrationFailed.
    """
    model = config.model
    settings = (model.dtype, model.kv_dtype, model.kernels, str(model.threads or ""))
    fingerprint = model_fingerprint(config.model_dir, *settings)
    if arguments.costs is not None and arguments.costs.exists() and arguments.costs_from is None:
        costs = read_costs(arguments.costs)
        if costs.fingerprint not in ("", fingerprint):
            problem = f"was measured for {costs.model}, with other files, types, threads or another release"
            raise CostsError(f"{problem}; must be another file, or one that does not exist yet")
        return costs
    if arguments.costs is not None and not arguments.costs.parent.is_dir():  # before a measurement
        raise CostsError(f"must be a file in an existing directory, {arguments.costs.parent} does not exist")
    if arguments.costs_from is not None:
        with citing_option("costs_from", arguments.costs_from, CalibrationFailed):
            costs = costs_of(logged_steps(arguments.costs_from))
    else:
        costs = _measured(config, arguments, replica, display, note)
    costs = msgspec.structs.replace(costs, model=config.name, fingerprint=fingerprint)
    if arguments.costs is not None:
        write_costs(arguments.costs, costs)
    return costs


def _measured(
    config: Config, arguments: PlanArguments, replica: Replica, display: ProgressDisplay, note: Note
) -> StepCosts:
    """The costs of steps, measured in a server with these options. Raises: CalibrationFailed, ConfigError."""
    if config.server.tls_cert is not None:
        raise ConfigError(
            [f"{config.cite('tls_cert')}: must not be set when costs are measured, since that uses plain HTTP"]
        )
    # The plan has no API keys.
    words = [*arguments.server_words, *(["--open-scopes", "inference"] if config.server.has_keys else [])]
    cases = Cases.of(replica, arguments.prompt, arguments.output)
    least_s, most_s = duration_s(cases)
    kept = "" if arguments.costs is not None else "; --costs FILE keeps what is found for the next plan"
    note(f"steps are measured for about {least_s:.0f} to {most_s:.0f} s, once the model is loaded{kept}")
    with tempfile.TemporaryDirectory() as directory:
        step_log = Path(directory) / "steps"
        with served_model(words, step_log) as url:
            answered = asyncio.run(ask_all(HttpService(url, config.name, replica.vocab_size), cases, display))
        display.finish()
        return costs_of(logged_steps(step_log), answered)


@contextlib.contextmanager
def served_model(words: Sequence[str], step_log: Path) -> Iterator[str]:
    """The URL of a server in another process, which is ready when the block begins, and ended after it.

    SIGTERM leaves the block too, so that no server stays behind. Raises: CalibrationFailed if the server ends early.
    """
    url = f"http://127.0.0.1:{_free_port()}"
    command = [sys.executable, "-m", "dragoman", "serve", *words, *_settings(read_target(url).port)]
    with contextlib.ExitStack() as ending:
        ending.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, _leave))
        # In another process group: an interrupted plan ends the server itself.
        process = subprocess.Popen([*command, "--step-log", str(step_log)], stdout=subprocess.DEVNULL, process_group=0)
        ending.callback(_end, process)
        asyncio.run(_wait_until_ready(url, process))
        yield url


async def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    client = HttpClient(read_target(url), {})
    try:
        while process.poll() is None:
            with contextlib.suppress(OSError, NotHttp):
                if (await client.get("/ping")).status == 200:
                    return
            await asyncio.sleep(_POLL_S)  # a loading process has no event to wait for
    finally:
        client.close()
    raise CalibrationFailed(f"the measured server ended with code {process.returncode}")


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_END_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _settings(port: int) -> list[str]:
    """Changes of the planned server's options: features that are not simulated are off."""
    place = ["--host", "127.0.0.1", "--port", str(port)]
    return [*place, "--log-level", "error", "--job-queue-size", "1000", "--speculation", "off"]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class HttpService:
    """Streams completions of the model `name`. Prompts have ids below half of `vocab_size`; special ones are above."""

    def __init__(self, url: str, name: str, vocab_size: int) -> None:
        self._target, self._name = read_target(url), name
        self._num_ids = max(vocab_size // 2, 1)
        self._dice = random.Random(0)

    async def ask(self, prompt_tokens: int, output_tokens: int) -> Answer:
        """See `calibrate.Service`. Uses a new connection, which is part of most clients' waiting time."""
        ids = [self._dice.randrange(self._num_ids) for _ in range(prompt_tokens)]
        fields = {"model": self._name, "prompt": ids, "max_tokens": output_tokens, "temperature": 0, "ignore_eos": True}
        body = json.dumps({**fields, "stream": True}).encode()
        client = HttpClient(self._target, {"connection": "close"})
        sent_s = time.perf_counter()
        sample = Sample(sent_s, sent_s)
        reader = AnswerReader(sample, _read_event)
        try:
            await client.post("/v1/completions", body, reader)
        except (OSError, NotHttp) as error:
            raise CalibrationFailed(f"the connection to the measured server broke off: {error}") from error
        finally:
            client.close()
        reader.finish(time.perf_counter())
        if sample.error or not sample.piece_times_s:
            reason = sample.message if sample.error else "an answer without tokens"
            raise CalibrationFailed(f"the measured server answered: {reason}")
        return Answer(sent_s, sample.piece_times_s)


def _read_event(sample: Sample, event: bytes, now_s: float) -> None:
    """Note the time of an event, even if its token has no text."""
    if event.startswith(b'{"error"'):
        sample.fail_inside(json.loads(event))
    else:
        sample.piece_times_s.append(now_s)
