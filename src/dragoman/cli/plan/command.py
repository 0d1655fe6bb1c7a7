"""`dragoman plan`: the number of replicas for a rate of requests, and their performance, by simulation.

Takes costs from a file or a step log, or measures them; `tools.plan` simulates. Called by `main`, on the main thread.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import msgspec

from dragoman.cli.command_options import cite
from dragoman.cli.plan.arguments import PlanArguments
from dragoman.cli.plan.service import HttpService, ServedModel
from dragoman.cli.progress import ProgressDisplay, note_to
from dragoman.cli.run_command import Console
from dragoman.config.resolve import Config, ConfigError
from dragoman.host.loading import check_rolling, citing, engine_setup, memory_needs
from dragoman.host.machine import available_memory_bytes
from dragoman.models import ModelError
from dragoman.models.fingerprint import model_fingerprint
from dragoman.tools.plan.calibrate import CalibrationFailed, Cases, ask_all, costs_of, duration_s, logged_steps
from dragoman.tools.plan.costs import CostsError, StepCosts, read_costs, write_costs
from dragoman.tools.plan.replica import Replica, replica_of
from dragoman.tools.plan.report import plan_json, plan_text
from dragoman.tools.plan.router import RouterKind
from dragoman.tools.plan.sizing import Bounds, PlanError, Planner
from dragoman.tools.plan.workload import Workload

FAILURES = (ConfigError, ModelError, OSError, CalibrationFailed)

Note = Callable[[str], None]


def run(config: Config, asked: PlanArguments, console: Console) -> int:
    console.tell(*(f"note: {notice}" for notice in config.notices))
    replica = replica_for(config)
    workload = Workload(
        rate=asked.rate,
        prompt_tokens=asked.prompt,
        output_tokens=asked.output,
        num_requests=asked.requests,
        prefix_tokens=asked.shared_prefix,
        num_prefixes=asked.prefixes,
    )
    with _citing_plan(asked):
        costs = _costs(config, asked, replica, console.display, note_to(console.stderr))
        try:
            planner = Planner(replica, costs, workload, cast(RouterKind, asked.router))
        except CostsError as error:
            raise PlanError("costs", str(error)) from error
        found = planner.plan(Bounds(asked.ttft, asked.itl), asked.replicas)
    about = (found, replica, costs.deviation, asked.disk_gb_s * 1e9)
    console.stdout.write(plan_json(*about) if asked.json else plan_text(config.name, *about))
    return 0


def replica_for(config: Config) -> Replica:
    check_rolling(config, ", whose scheduler is simulated")
    with citing(config):
        return replica_of(engine_setup(config), memory_needs(config), available_memory_bytes())


def _costs(config: Config, asked: PlanArguments, replica: Replica, display: ProgressDisplay, note: Note) -> StepCosts:
    """The costs from the file; or from a step log or a measurement, then kept in the file.

    Raises: CostsError for the file; PlanError for the log; CalibrationFailed.
    """
    model = config.model
    settings = (model.dtype, model.kv_dtype, model.kernels, str(model.threads or ""))
    fingerprint = model_fingerprint(config.model_dir, *settings)
    if asked.costs is not None and asked.costs.exists() and asked.costs_from is None:
        costs = read_costs(asked.costs)
        if costs.fingerprint not in ("", fingerprint):
            problem = f"was measured for {costs.model}, with other files, types, threads or another release"
            raise CostsError(f"{problem}; must be another file, or one that does not exist yet")
        return costs
    if asked.costs is not None and not asked.costs.parent.is_dir():  # before a measurement
        raise CostsError(f"must be a file in an existing directory, {asked.costs.parent} does not exist")
    costs = (
        _logged(asked.costs_from) if asked.costs_from is not None else _measured(config, asked, replica, display, note)
    )
    costs = msgspec.structs.replace(costs, model=config.name, fingerprint=fingerprint)
    if asked.costs is not None:
        write_costs(asked.costs, costs)
    return costs


def _logged(step_log: Path) -> StepCosts:
    try:
        return costs_of(logged_steps(step_log))
    except CalibrationFailed as error:
        raise PlanError("costs_from", str(error)) from error


def _measured(
    config: Config, asked: PlanArguments, replica: Replica, display: ProgressDisplay, note: Note
) -> StepCosts:
    """The costs of steps, measured in a server with these options. Raises: CalibrationFailed, ConfigError."""
    if config.server.tls_cert is not None:
        raise ConfigError(
            [f"{config.cite('tls_cert')}: must not be set when costs are measured, since that uses plain HTTP"]
        )
    # The plan has no API keys.
    words = [*asked.server_words, *(["--open-scopes", "inference"] if config.server.has_keys else [])]
    cases = Cases.of(replica, asked.prompt, asked.output)
    least_s, most_s = duration_s(cases)
    kept = "" if asked.costs is not None else "; --costs FILE keeps what is found for the next plan"
    note(f"steps are measured for about {least_s:.0f} to {most_s:.0f} s, once the model is loaded{kept}")
    with tempfile.TemporaryDirectory() as directory:
        step_log = Path(directory) / "steps"
        with ServedModel(words, step_log) as server:
            answered = asyncio.run(ask_all(HttpService(server.url, config.name, replica.vocab_size), cases, display))
        display.finish()
        return costs_of(logged_steps(step_log), answered)


@contextmanager
def _citing_plan(asked: PlanArguments) -> Iterator[None]:
    """Turns an error of the sizing about an option into ConfigError, with the option's value."""
    try:
        yield
    except PlanError as error:
        raise ConfigError([f"{cite(error.option, getattr(asked, error.option))}: {error}"]) from error
    except CostsError as error:
        raise ConfigError([f"{cite('costs', asked.costs)}: {error}"]) from error
