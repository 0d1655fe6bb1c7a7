"""`dragoman eval`: a model's perplexity on a text, and its distance from another model. `tools.evaluate` measures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.cli.commands import USAGE_ERROR
from dragoman.cli.progress import ProgressDisplay
from dragoman.cli.server_words import read_one_model
from dragoman.cli.subcommand import Command, Console, ReadWords, cite, citing_option, option, options_of
from dragoman.config.kinds import Choice, FilePath, Integer, Switch, Text
from dragoman.config.resolve import Config, ConfigError
from dragoman.errors import ModelError

if TYPE_CHECKING:
    from dragoman.models import LoadedModel
    from dragoman.tools.evaluate import Evaluated, Measures

FAILURES = (ConfigError, ModelError, ValueError, OSError)
DTYPES = ("int8", "int4", "bf16", "f16", "f32")
DEFAULT_WINDOW = 2048

_USAGE = """\
usage: dragoman eval [MODEL_DIR] --text FILE [--against MODEL_DIR] [--against-dtype TYPE] [options]

Has a model read a text and tells its perplexity. With --against, or --against-dtype for the same model stored otherwise,
also how far its probabilities are from the other's: the KL divergence in nats for each token, mean and 99th percentile, and
how often both find the same token the likeliest. All options of `dragoman serve` may be given too, and act as they do there.
See docs/compression.md.

  dragoman eval ./my-model --text book.txt
  dragoman eval ./my-model --dtype int4 --against-dtype f32 --text book.txt    what int4 costs
"""


@dataclass(frozen=True, slots=True)
class EvalArguments:
    """`against` None and `against_dtype` None = no comparison."""

    text: Path = option(FilePath("FILE"), "a file of UTF-8 text that the model reads", is_needed=True)
    against: str | None = option(Text(), "another model to compare with, of the same tokenizer [none]")
    against_dtype: str | None = option(
        Choice(DTYPES), "how that one is stored; without --against: the same model [f32]"
    )
    window: int | None = option(Integer(2), f"tokens that are read at once [the context, at most {DEFAULT_WINDOW}]")
    stride: int | None = option(Integer(1), "tokens that each window scores anew; fewer see more before them [all]")
    tokens: int | None = option(Integer(2), "read the first N tokens of the text only [all]")
    json: bool = option(Switch(), "print JSON instead of a table", False)

    @property
    def compares(self) -> bool:
        return self.against is not None or self.against_dtype is not None


def read_eval(words: ReadWords) -> EvalArguments | None:
    words.server_words = [*words.others, *words.flags]
    window, stride = words.values["window"], words.values["stride"]
    if window is not None and stride is not None and stride > window:
        words.refuse("stride", f"must be at most --window ({window})")
    return words.made(EvalArguments)


def run(config: Config, arguments: EvalArguments, console: Console) -> int:
    """Print the evaluation. Returns the exit code: 0, or 2 for a wrong reference model."""
    against = None
    if arguments.compares:
        words = [arguments.against or str(config.model_dir), "--dtype", arguments.against_dtype or "f32"]
        against = read_one_model(words, console.variables, console.stderr)
        if against is None:
            return USAGE_ERROR
    from dragoman.tools.evaluate import evaluation_json, evaluation_text

    evaluated, measures = _evaluated(config, against, arguments, console.display)
    console.stdout.write((evaluation_json if arguments.json else evaluation_text)(evaluated, measures))
    return 0


def _evaluated(
    config: Config, against: Config | None, arguments: EvalArguments, display: ProgressDisplay
) -> tuple[Evaluated, Measures]:
    from dragoman.host.loading import check_rolling
    from dragoman.tokenizer.hf_tokenizer import load_tokenizer
    from dragoman.tools import evaluate as tool

    with citing_option("text", arguments.text, tool.EvaluationError):
        text = tool.read_text(arguments.text)
    for each in (config, against):
        if each is not None:
            check_rolling(each, "; only its models can be evaluated")
    tokenizer = load_tokenizer(config.model_dir)
    if against is not None and against.model_dir != config.model_dir:
        with citing_option("against", arguments.against, tool.EvaluationError):
            tool.refuse_other_tokens(tokenizer, load_tokenizer(against.model_dir))
    tokens = tool.tokens_of(text, tokenizer)
    loaded = _load(config, display)
    reference = None if against is None else _load(against, display)
    context = min(model.facts.max_position for model in (loaded, reference) if model is not None)
    window, stride = _window(arguments, context, len(tokens.start))
    with citing_option("text", arguments.text, tool.EvaluationError):
        windows = tool.cut_text(tokens.token_ids[: arguments.tokens], window, stride, tokens.start)
    measures = tool.evaluate(loaded, windows, display, reference)
    display.finish()
    evaluated = tool.Evaluated(
        model=config.name,
        dtype=loaded.options.weight_type,
        against=None if against is None else against.name,
        against_dtype=None if reference is None else reference.options.weight_type,
        text=str(arguments.text),
        window=window,
        stride=stride,
    )
    return evaluated, measures


def _load(config: Config, display: ProgressDisplay) -> LoadedModel:
    from dragoman.host.loading import citing, engine_setup
    from dragoman.tools.evaluate import load

    with citing(config):
        loaded = load(engine_setup(config), lambda stage, part: display(f"{config.name}: {stage}", part))
    display.finish()
    return loaded


def _window(arguments: EvalArguments, context: int, num_start: int) -> tuple[int, int]:
    """The tokens of a window and of a stride. Raises: ConfigError if they do not fit `context` tokens.

    `num_start`: the tokens before each window's text.
    """
    if arguments.window is not None and arguments.window > context:
        raise ConfigError([f"{cite('window', arguments.window)}: must be at most the context length ({context})"])
    window = arguments.window or min(context, DEFAULT_WINDOW)
    room = window - num_start
    if arguments.stride is not None and arguments.stride > room:
        raise ConfigError([f"{cite('stride', arguments.stride)}: must be at most what fits into a window ({room})"])
    return window, arguments.stride or room


COMMAND = Command(_USAGE, options_of(EvalArguments), read_eval, "dragoman.cli.eval", takes_server_options=True)
