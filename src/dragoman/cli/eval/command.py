"""`dragoman eval`: a model's perplexity on a text, and its distance from another model. `tools.evaluate` measures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dragoman.cli.command_options import cite
from dragoman.cli.commands import USAGE_ERROR
from dragoman.cli.eval.arguments import DEFAULT_WINDOW, EvalArguments
from dragoman.cli.progress import ProgressDisplay
from dragoman.cli.run_command import Console
from dragoman.cli.server_words import read_one_model
from dragoman.config.resolve import Config, ConfigError
from dragoman.host.loading import check_rolling, citing, engine_setup
from dragoman.models import LoadedModel, ModelError
from dragoman.tokenizer.hf_tokenizer import load_tokenizer
from dragoman.tools.evaluate.evaluation import evaluate, load
from dragoman.tools.evaluate.measures import Evaluated, Measures, evaluation_json, evaluation_text
from dragoman.tools.evaluate.text import (
    EvaluationError,
    TextTokens,
    cut_text,
    read_text,
    refuse_other_tokens,
    tokens_of,
)

FAILURES = (ConfigError, ModelError, ValueError, OSError)


def run(config: Config, asked: EvalArguments, console: Console) -> int:
    """Print the evaluation. Returns the exit code: 0, or 2 for a wrong reference model."""
    against = None
    if asked.compares:
        words = [asked.against or str(config.model_dir), "--dtype", asked.against_dtype or "f32"]
        against = read_one_model(words, console.variables, console.stderr)
        if against is None:
            return USAGE_ERROR
    evaluated, measures = _evaluated(config, against, asked, console.display)
    console.stdout.write((evaluation_json if asked.json else evaluation_text)(evaluated, measures))
    return 0


def _evaluated(
    config: Config, against: Config | None, asked: EvalArguments, display: ProgressDisplay
) -> tuple[Evaluated, Measures]:
    with _citing("text", asked.text):
        text = read_text(asked.text)
    for each in (config, against):
        if each is not None:
            check_rolling(each, "; only its models can be evaluated")
    tokenizer = load_tokenizer(config.model_dir)
    if against is not None and against.model_dir != config.model_dir:
        with _citing("against", asked.against):
            refuse_other_tokens(tokenizer, load_tokenizer(against.model_dir))
    tokens = tokens_of(text, tokenizer)
    loaded = _load(config, display)
    reference = None if against is None else _load(against, display)
    window, stride = _window(loaded, reference, asked, tokens)
    with _citing("text", asked.text):
        windows = cut_text(tokens.token_ids[: asked.tokens], window, stride, tokens.start)
    measures = evaluate(loaded, windows, display, reference)
    display.finish()
    evaluated = Evaluated(
        model=config.name,
        dtype=loaded.options.weight_type,
        against=None if against is None else against.name,
        against_dtype=None if reference is None else reference.options.weight_type,
        text=str(asked.text),
        window=window,
        stride=stride,
    )
    return evaluated, measures


def _load(config: Config, display: ProgressDisplay) -> LoadedModel:
    with citing(config):
        loaded = load(engine_setup(config), lambda stage, part: display(f"{config.name}: {stage}", part))
    display.finish()
    return loaded


def _window(
    loaded: LoadedModel, reference: LoadedModel | None, asked: EvalArguments, tokens: TextTokens
) -> tuple[int, int]:
    """The tokens of a window and of a stride. Raises: ConfigError if they do not fit the models' context."""
    context = min(model.facts.max_position for model in (loaded, reference) if model is not None)
    if asked.window is not None and asked.window > context:
        raise ConfigError([f"{cite('window', asked.window)}: must be at most the context length ({context})"])
    window = asked.window or min(context, DEFAULT_WINDOW)
    room = window - len(tokens.start)
    if asked.stride is not None and asked.stride > room:
        raise ConfigError([f"{cite('stride', asked.stride)}: must be at most what fits into a window ({room})"])
    return window, asked.stride or room


@contextmanager
def _citing(option: str, value: object) -> Iterator[None]:
    """Turns an error about an option's value into ConfigError, with the value."""
    try:
        yield
    except EvaluationError as error:
        raise ConfigError([f"{cite(option, value)}: {error}"]) from error
