"""Scores a model on a text, optionally beside a reference model. Called by `dragoman eval`, on its thread."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from dragoman.engine.factory import EngineSetup, Progress
from dragoman.engine.rolling.options import RollingOptions
from dragoman.models import LoadedModel, load_model
from dragoman.tools.evaluate.measures import Measures, TokenScores, joined_scores, measures_of, score_tokens
from dragoman.tools.evaluate.reader import Array, WindowReader, piece_tokens
from dragoman.tools.evaluate.text import EvaluationError, Window


def load(setup: EngineSetup, progress: Progress) -> LoadedModel:
    """The model, which reads texts only. Raises: ModelError."""
    options = RollingOptions.among(setup.options).model_options
    return load_model(setup.model_dir, replace(options, sees=False, takes_back=False), progress)


def evaluate(
    loaded: LoadedModel, windows: Sequence[Window], progress: Progress, reference: LoadedModel | None = None
) -> Measures:
    """The measures of a model, compared with `reference`. Raises: EvaluationError for logits that are not finite."""
    models = [loaded] if reference is None else [loaded, reference]
    vocab_size = min(model.facts.vocab_size for model in models)
    longest, piece = max(len(window.token_ids) for window in windows), piece_tokens(vocab_size)
    with ExitStack() as stack:
        readers = [stack.enter_context(WindowReader(model, longest, piece)) for model in models]
        parts: list[TokenScores] = []
        for number, window in enumerate(windows):
            progress("reading", number / len(windows))
            parts += _window_scores(readers, window, vocab_size)
        progress("reading", 1.0)
    return measures_of(joined_scores(parts))


def _window_scores(readers: Sequence[WindowReader], window: Window, vocab_size: int) -> list[TokenScores]:
    tokens = np.array(window.token_ids, dtype=np.int64)
    # the last row predicts an unknown token
    pieces = [reader.read(window.token_ids[:-1], window.first_scored - 1) for reader in readers]
    scores = []
    for both in zip(*pieces, strict=True):
        first, logits = both[0]
        targets = tokens[first + 1 : first + 1 + len(logits)]
        others: list[Array | None] = [other[:, :vocab_size] for _, other in both[1:]]
        try:
            scores.append(score_tokens(logits[:, :vocab_size], targets, *others))
        except ValueError as error:
            raise EvaluationError(f"the model cannot be evaluated: {error}, at token {first} of a window") from error
    return scores
