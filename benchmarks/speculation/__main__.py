"""Measures what speculation brings on five kinds of text, against plain decoding in the same run; a table, a last JSON line.

Does: serve one model twice, with speculation and without, and ask both the same over HTTP, in turns, never at once: chat,
summaries of the prompt, edits of a file, records of a schema, and tool calls that repeat; at several numbers of streams.
Compares the answers. With --peers also llama.cpp's server and OpenVINO GenAI with their own lookups, on the same tokens,
without a grammar (they answer the same without one). Does not: install peers (`benchmarks.serving.peers` does). Prompts are
computed before the clock starts, and none comes twice. On an otherwise idle machine:

    python -m benchmarks.speculation                            # a built model of 386M parameters that copies
    python -m benchmarks.speculation --model demo --starts 10 --rounds 1        # the bundled model
    python -m benchmarks.speculation --model MODEL_DIR --modes auto lookup suffix
    python -m benchmarks.speculation --peers --streams 1 16 --kinds edit agent
    python -m benchmarks.speculation --model demo --steady --rounds 6

With --steady one server answers both, and each request says whether anything is guessed: small steps of one process are up
to a tenth quicker than of another, which no number of rounds evens out. Its streams do not wait for each other, prompts are
part of what is measured, and what counts is the time in which all of them are busy, as in a server that always has more to
do.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.serving.load import LoadFailed
from benchmarks.serving.peers import DEFAULT_ROOT
from benchmarks.serving.processes import ProcessFailed
from benchmarks.serving.turns import say
from benchmarks.speculation import report
from benchmarks.speculation.asking import Answer, Asker, Phase, Request
from benchmarks.speculation.contenders import (
    MOST_STREAMS,
    Asks,
    Contender,
    both_in_one,
    built_copier,
    speller,
    start_genai,
    start_llamacpp,
    start_own,
)
from benchmarks.speculation.copier_texts import copier_task
from benchmarks.speculation.demo_texts import text_task
from benchmarks.speculation.tasks import AGENT, CHAT, EDIT, JSON, KINDS, SUMMARY, Task
from dragoman.config.resolve import demo_model_dir

COPIER, DEMO = "copier", "demo"
# Of one measurement: fewer streams have several one after the other. Those with short answers more, or what it takes to
# notice that texts are of another kind would be most of it.
LEAST_TASKS = {CHAT: 16, SUMMARY: 16, EDIT: 4, JSON: 4, AGENT: 4}
_OF_STREAM = {CHAT: 2, SUMMARY: 2, EDIT: 1, JSON: 1, AGENT: 1}  # tasks of each stream of --steady, at least
_WARM_UP = 1_000_000  # numbers of tasks that are not measured


class Measurement:
    """A run: who takes part, and which tasks have been asked."""

    def __init__(self, make: Callable[[str, int], Task], *, is_steady: bool = False) -> None:
        self.contenders: list[Contender] = []
        self._make = make
        self._converse = converse_apart if is_steady else converse
        self._of_stream = _OF_STREAM if is_steady else dict.fromkeys(KINDS, 1)
        self._num_asked: defaultdict[str, int] = defaultdict(int)
        self._num_rounds: defaultdict[tuple[str, int], int] = defaultdict(int)

    def begin(self, contenders: Sequence[Contender], kinds: Sequence[str], num_streams: int = 2) -> None:
        """Go on with these, started anew: what they do counts with what those of the same names have done.

        Tasks of each kind for so many streams are unmeasured: kernels of every number of rows, allocations, compiled
        grammars.
        """
        before = {contender.name: contender for contender in self.contenders}
        for contender in contenders:
            if contender.name in before:
                contender.phases, contender.failure = before[contender.name].phases, before[contender.name].failure
        self.contenders = list(contenders)
        for kind in kinds:
            streams = [[self._make(kind, _WARM_UP + number)] for number in range(num_streams)]
            for contender in self.contenders:
                self._take(contender, streams)

    def measure(self, kind: str, num_streams: int) -> None:
        """A round: everybody the same new tasks, the order turned every round."""
        streams = self._tasks(kind, num_streams)
        first = self._num_rounds[kind, num_streams] % len(self.contenders)
        self._num_rounds[kind, num_streams] += 1
        for contender in [*self.contenders[first:], *self.contenders[:first]]:
            phase = self._take(contender, streams)
            if phase is not None:
                contender.phases.setdefault((kind, num_streams), []).append(phase)

    def _tasks(self, kind: str, num_streams: int) -> list[list[Task]]:
        count = max(self._of_stream[kind], LEAST_TASKS[kind] // num_streams)
        first = self._num_asked[kind]
        self._num_asked[kind] += num_streams * count
        return [[self._make(kind, first + stream * count + i) for i in range(count)] for stream in range(num_streams)]

    def _take(self, contender: Contender, streams: Sequence[Sequence[Task]]) -> Phase | None:
        """What comes while only this contender is awake; None if it fails, or has failed before."""
        if contender.failure:
            return None
        try:
            with contender.process.awake():
                return self._converse(contender.asks, streams)
        except (LoadFailed, ProcessFailed) as error:
            contender.failure = str(error)
            contender.process.stop()
            say(f"{contender.name} failed: {error}")
            return None


def converse(asks: Asks, streams: Sequence[Sequence[Task]]) -> Phase:
    """All streams at once, turn by turn, the conversations of each one after the other.

    What a turn adds to the prompt is computed before the turn's clock starts.
    """
    phase = Phase()
    for tasks in zip(*streams, strict=True):
        texts = [""] * len(tasks)
        for turns in zip(*(task.turns for task in tasks), strict=True):
            texts = [text + turn.text for text, turn in zip(texts, turns, strict=True)]
            requests = [Request(turn.ids or texts[stream], turn, stream) for stream, turn in enumerate(turns)]
            asks.prepare(requests)
            found = asks.run(requests)
            phase.add(found)
            texts = [f"{text}{answer}" for text, answer in zip(texts, found.answers, strict=True)]
    return phase


def converse_apart(asks: Asks, streams: Sequence[Sequence[Task]]) -> Phase:
    """All streams at once, each at its own pace, prompts included. Raises: LoadFailed."""
    assert isinstance(asks, Asker)
    return asks.converse(streams)


def model_directory(given: argparse.Namespace, scratch: Path) -> Path:
    """Where the model is, written if it is not there."""
    if given.model == COPIER:
        return built_copier(scratch / "copier", given.layers, needs_gguf=given.peers)
    return demo_model_dir() if given.model == DEMO else Path(given.model)


def start(given: argparse.Namespace, directory: Path, scratch: Path, stack: ExitStack) -> list[Contender]:
    """Everybody, the plain server first."""
    if given.steady:
        return both_in_one(start_own(stack, directory, scratch, given.modes[0], given.dtype))
    modes = [report.OFF, *(mode for mode in given.modes if mode != report.OFF)]
    found: list[Contender | None] = [start_own(stack, directory, scratch, mode, given.dtype) for mode in modes]
    if given.peers:
        found.append(start_llamacpp(stack, given.root, directory, scratch, given.llamacpp_arguments))
        found.append(start_genai(stack, given.root, directory, scratch))
    return [contender for contender in found if contender is not None]


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=COPIER, help="copier, demo, or a model directory")
    parser.add_argument("--dtype", default="int8", choices=("int8", "int4", "bf16", "f16", "f32"))
    parser.add_argument("--layers", type=_positive, default=24, help="layers of the model that copies")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--streams", nargs="+", type=_streams, default=[1, 4, 16, 32], help=f"1 to {MOST_STREAMS} each")
    parser.add_argument("--rounds", type=_positive, default=2, help="of each start")
    parser.add_argument(
        "--starts",
        type=_positive,
        default=1,
        help="of the servers: small steps of one process are up to a tenth quicker than of another; "
        "of all rounds of all starts the median counts",
    )
    parser.add_argument(
        "--modes",
        nargs="+",
        choices=("auto", "lookup", "suffix"),
        default=["auto"],
        help="of --speculation, beside off",
    )
    parser.add_argument(
        "--steady", action="store_true", help="one server for both, streams at their own pace; with one of --modes"
    )
    parser.add_argument("--peers", action="store_true", help="llama.cpp and OpenVINO GenAI as well; only with copier")
    parser.add_argument(
        "--llamacpp-arguments",
        default="--spec-type ngram-simple --spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 12",
        help="of its server: which lookup, and how long; default: %(default)s",
    )
    parser.add_argument("--root", type=Path, default=DEFAULT_ROOT, help="where the peers are installed")
    parser.add_argument(
        "--scratch", type=Path, help="where the model is written and kept; default: a temporary directory"
    )
    given = parser.parse_args(arguments)
    if given.peers and given.model != COPIER:
        parser.error(f"argument --peers: only with --model {COPIER}, not {given.model}")
    if given.steady and (given.peers or len(given.modes) > 1):
        parser.error("argument --steady: without --peers and with a single one of --modes")
    return given


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be an integer >= 1")
    return int(text)


def _streams(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= MOST_STREAMS:
        raise argparse.ArgumentTypeError(f"{text!r} must be an integer from 1 to {MOST_STREAMS}")
    return int(text)


def tell(contenders: Sequence[Contender], keys: Sequence[tuple[str, int]], directory: Path) -> list[dict[str, Any]]:
    """Write the table, a line for each kind at each number of streams; returns these as values."""
    names, tokenizer = [contender.name for contender in contenders], speller(directory)

    def spell(answer: Answer) -> str:
        return answer if isinstance(answer, str) else str(tokenizer.decode(answer))

    lines = [report.fold(contenders, key, spell) for key in keys]
    sys.stdout.write("\n".join([report.header(names), *(report.row(line, names) for line in lines)]) + "\n")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every kind at every number of streams, and report."""
    given = parse_arguments(arguments)
    make = copier_task if given.model == COPIER else text_task
    with ExitStack() as stack:
        scratch = given.scratch or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-speculation-"))
        )
        measurement, directory = Measurement(make, is_steady=given.steady), model_directory(given, scratch)
        for number in range(given.starts):
            with ExitStack() as processes:
                measurement.begin(start(given, directory, scratch, processes), given.kinds, max(given.streams))
                for _ in range(given.rounds):
                    for num_streams in given.streams:
                        for kind in given.kinds:
                            measurement.measure(kind, num_streams)
            say(f"{number + 1} of {given.starts} starts measured")
        lines = tell(
            measurement.contenders, [(kind, count) for count in given.streams for kind in given.kinds], directory
        )
    summary = {"benchmark": "speculation", "model": given.model, "dtype": given.dtype}
    summary |= {"starts": given.starts, "rounds": given.rounds}
    sys.stdout.write(json.dumps(summary | {"results": lines}) + "\n")


if __name__ == "__main__":
    main()
