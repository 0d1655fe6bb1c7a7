"""Asks a server for everything at once for a while, then settles the accounts.

Does: start a server of its own on the loopback interface, with little room, over two copies of a model and one that takes
pictures; send eleven kinds of requests in five APIs from many clients: some invalid, some leaving before their answer has
ended, some reading slowly, some that fail on purpose, some that are attacks; meanwhile a model is loaded and unloaded. Then
every request must have been answered as it should, the log and /metrics must add up exactly with what the clients counted,
and nothing may be held. How memory grows is told. The last line is JSON; the exit code is 1 if a check fails (memory is
none). Does not: measure speed.

    make soak                                              (the bundled model; a few minutes)
    python -m benchmarks.soak --no-guest                   (memory without a model that comes and goes)
    python -m benchmarks.soak --no-keys                    (a server without keys, for what browsers send)
    python -m benchmarks.soak --requests 200000            (longer)
    python -m benchmarks.soak --kinds schema

Requests follow from the seed; which of them are refused depends on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.serving.processes import Server, ServerProcess, free_port
from benchmarks.soak import attacks
from benchmarks.soak.books import TOKENS, Line
from benchmarks.soak.client import KEY
from benchmarks.soak.faults import MAX_REQUEST_BYTES, write_model
from benchmarks.soak.kinds import KINDS, MODEL
from benchmarks.soak.load import Soak
from benchmarks.soak.memory import Reading
from benchmarks.soak.report import SoakReport, settle_accounts
from dragoman.config.bundled import BUNDLED
from dragoman.server.run import loop_factory

ROOM = ("--max-num-seqs", "16", "--job-queue-size", "14", "--kv-cache-gb", "0.05")
"""For thirty requests at a time: the clients are more than twice as many."""

SECOND = "second"
DEFAULT_REQUESTS, DEFAULT_CLIENTS = 10_000, 64


def soak(arguments: argparse.Namespace) -> SoakReport:
    """Start a server, load it, settle the accounts, end it; the readings are written meanwhile."""
    port = free_port()
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-soak-")))
        command = _command(directory / "store", Path(arguments.model or BUNDLED["demo"]), port)
        if arguments.has_keys:  # without, other hosts are refused by default
            command += ["--allowed-hosts", "soak.example"]
        environ = {"DRAGOMAN_API_KEY": KEY} if arguments.has_keys else {}
        server = Server(MODEL, [*command, *arguments.server], port, "openai", environ=environ)
        process = stack.enter_context(ServerProcess(server, directory))
        faults = attacks.WITH_KEYS if arguments.has_keys else attacks.WITHOUT_KEYS
        load = Soak(
            process.pid,
            port,
            arguments.kinds,
            faults,
            arguments.clients,
            arguments.requests,
            arguments.every or max(arguments.requests // 20, 1),
            arguments.seed,
            arguments.warm_up,
            SECOND if arguments.guest else "",
        )
        sys.stdout.write(f"{'requests':>10} {'seconds':>8} {'RSS MiB':>8} {'PSS':>8} {'anonymous':>10}\n")
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(load.run(_show))
            samples, running = runner.run(load.samples()), runner.run(load.running())
        process.check_alive()
        lines = [line for log in directory.glob("*.log") for line in _request_lines(log)]
        if arguments.keep_log:
            for log in directory.glob("*.log"):
                Path(arguments.keep_log).write_bytes(log.read_bytes())
    return SoakReport(
        checks=settle_accounts(load.books, lines, samples, running),
        outcomes=load.books.outcomes(),
        calls=dict(Counter(line["outcome"] for line in lines)),
        tokens={kind: sum(line[f"{kind}_tokens"] for line in lines) for kind in TOKENS},
        tenant=dict(load.tenant),
        readings=tuple(load.readings),
    )


def _command(store: Path, model: Path, port: int) -> list[str]:
    """The server's command; makes its model store."""
    write_model(model, store / MODEL, is_failing=True)
    write_model(model, store / SECOND, is_failing=False)
    models = f"{MODEL}={store / MODEL},{attacks.SEEING}={BUNDLED['demo-vision']}"
    return [
        *(sys.executable, "-m", "dragoman", "serve", "--model-store", str(store)),
        *("--load-models", models, "--host", "127.0.0.1", "--port", str(port)),
        *("--log-requests", "json", "--max-request-size", str(MAX_REQUEST_BYTES), *ROOM, *attacks.ROOM),
    ]


def _request_lines(log: Path) -> Iterator[Line]:
    with log.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            if text.startswith('{"id":'):
                line: Line = json.loads(text)
                yield line


def _show(reading: Reading) -> None:
    memory = reading.memory
    sys.stdout.write(
        f"{reading.num_requests:>10} {reading.seconds:>8} {memory.rss:>8} {memory.pss:>8} {memory.anonymous:>10}"
        f"{'  the guest has gone' if reading.is_settled else ''}\n"
    )
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one soak, show its table, then its report as a JSON line; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="model directory; default: the bundled one")
    parser.add_argument("--kinds", nargs="+", choices=sorted(KINDS), default=list(KINDS))
    parser.add_argument("--clients", type=int, default=DEFAULT_CLIENTS)
    parser.add_argument("--requests", type=int, default=DEFAULT_REQUESTS)
    parser.add_argument("--warm-up", type=int, default=300, help="requests before the first reading")
    parser.add_argument("--every", type=int, help="requests between two readings of the memory; default: a twentieth")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-guest", dest="guest", action="store_false", help="no model comes and goes")
    parser.add_argument("--no-keys", dest="has_keys", action="store_false", help="the server asks for no key")
    parser.add_argument("--keep-log", metavar="FILE", help="where to leave a copy of the server's log")
    parser.add_argument("--server", nargs=argparse.REMAINDER, default=[], help="further arguments of the server; last")
    report = soak(parser.parse_args(arguments))
    print("\n".join(report.lines()))
    print(json.dumps(report.as_json()))
    return 0 if report.holds else 1


if __name__ == "__main__":
    sys.exit(main())
