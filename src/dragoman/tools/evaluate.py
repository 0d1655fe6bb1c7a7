"""Has a model read a text, and measures it: perplexity, and the distance from a reference model; the report.

Cuts a text into windows that fit the model's context, and runs a loaded model over them for all logits. Called by
`dragoman eval`, `compress` and `selftest`, on the calling thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dragoman.engine.factory import EngineSetup, Progress
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.forward.runner import BlockTables, ForwardBatch
from dragoman.engine.rolling.options import RollingOptions
from dragoman.models import LoadedModel, load_model
from dragoman.tokenizer.base import Tokenizer

Array = np.ndarray[Any, Any]

_LOGIT_BYTES = 32 << 20  # of one piece, which bounds memory for any window and vocabulary
_MOST_TOKENS = 256  # of a piece
_LEAST_TOKENS = 16
_ROWS = 16  # rows at a time, which stay in the processor's caches


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


# --- the text ---------------------------------------------------------------------------------------------------------


class EvaluationError(ValueError):
    """A text or a model cannot be evaluated; one line."""


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens that a model reads at once. `first_scored`: the first counted one, which has a token before it."""

    token_ids: tuple[int, ...]
    first_scored: int

    @property
    def num_scored(self) -> int:
        return len(self.token_ids) - self.first_scored


def cut_windows(token_ids: Sequence[int], size: int, stride: int, start: Sequence[int] = ()) -> Iterator[Window]:
    """Windows of at most `size` tokens; each scores `stride` new tokens, the first one all of its tokens.

    `start`: tokens at the beginning of each window, within its size. A token without a predecessor is not scored.
    Source: huggingface.co/docs/transformers/perplexity, "Calculating PPL with fixed-length models".
    """
    room = size - len(start)
    assert 0 < stride <= room, "the caller has checked it"
    end_scored = 0
    while end_scored < len(token_ids):
        end = min(end_scored + (stride if end_scored else room), len(token_ids))
        begin = max(0, end - room)
        window = Window((*start, *token_ids[begin:end]), max(1, len(start) + end_scored - begin))
        if window.num_scored:
            yield window
        end_scored = end


def cut_text(token_ids: Sequence[int], size: int, stride: int | None, start: Sequence[int] = ()) -> list[Window]:
    """The windows of a whole text; `stride` None = all of a window. Raises: EvaluationError for less than two tokens."""
    windows = list(cut_windows(token_ids, size, stride or size - len(start), start))
    if not windows:
        raise EvaluationError("the text is too short: it needs at least two tokens")
    return windows


class TextTokens(NamedTuple):
    """A text's tokens. `start`: the first tokens of a prompt, before each window."""

    token_ids: list[int]
    start: list[int]


def read_text(path: Path) -> str:
    """The file's text. Raises: EvaluationError if it cannot be read, is not UTF-8, or is empty."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise EvaluationError(f"must be a file that can be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise EvaluationError(f"must be UTF-8 text: {error.reason} at byte {error.start}") from error
    if not text:
        raise EvaluationError("must be a file with text, but it is empty")
    return text


def tokens_of(text: str, tokenizer: Tokenizer) -> TextTokens:
    """The text's tokens without special ones, and the token that begins a prompt, if any."""
    bos = tokenizer.bos_token_id
    begins = bos is not None and tokenizer.encode("a")[:1] == [bos]
    return TextTokens(tokenizer.encode(text, add_special_tokens=False), [bos] if begins and bos is not None else [])


def refuse_other_tokens(tokenizer: Tokenizer, other: Tokenizer) -> None:
    """Raises: EvaluationError if the tokenizers differ in a token."""
    if tokenizer.vocab_size != other.vocab_size:
        sizes = f"{other.vocab_size} tokens instead of {tokenizer.vocab_size}"
        raise EvaluationError(f"must be a model with the same tokenizer, but its vocabulary has {sizes}")
    for token_id in range(tokenizer.vocab_size):
        mine, its = tokenizer.token_bytes(token_id), other.token_bytes(token_id)
        if mine != its:
            raise EvaluationError(
                f"must be a model with the same tokenizer, but its token {token_id} is {_shown(its)} instead of "
                f"{_shown(mine)}"
            )


def _shown(token: bytes) -> str:
    return repr(token.decode("utf-8", errors="replace"))


# --- the logits -------------------------------------------------------------------------------------------------------


def piece_tokens(vocab_size: int) -> int:
    """The tokens of a piece, bounded by the size of its logits."""
    return min(max(_LOGIT_BYTES // (4 * vocab_size), _LEAST_TOKENS), _MOST_TOKENS)


class WindowReader:
    """Reads one window after the other, in pieces of `piece` tokens. A context manager."""

    def __init__(self, loaded: LoadedModel, window: int, piece: int) -> None:
        """Allocates the key/value cache of `window` tokens."""
        self._kinds = loaded.facts.cache_kinds
        self._block_size = loaded.profile.block_size
        self._boundary = loaded.facts.long_context_from
        self._num_blocks = -(-window // self._block_size)
        # States are large, and only the last one is needed: a few blocks are used in turn, each once per step.
        in_turn = min(-(-piece // self._block_size) + 2, self._num_blocks)
        self._counts = [in_turn if kind.has_states else self._num_blocks for kind in self._kinds]
        self._piece = piece
        self._runner = OpenVinoRunner(loaded, self._counts)

    def __enter__(self) -> WindowReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()

    def read(self, token_ids: Sequence[int], first_row: int = 0) -> Iterator[tuple[int, Array]]:
        """For each piece, the index of its first row's token and the logits f32 [rows, vocab], valid until the next.

        Omits rows before `first_row`.
        """
        num_tokens = len(token_ids)
        for begin in range(0, num_tokens, self._piece):
            end = min(begin + self._piece, num_tokens)
            first = max(begin, first_row)
            logits = self._runner.forward(self._batch(token_ids, begin, end, first))
            if first < end:
                yield first, logits

    def output(self, name: str) -> Array:
        """The further output `name` of the graph for the last piece."""
        return self._runner.output(name)

    def _batch(self, token_ids: Sequence[int], begin: int, end: int, first_row: int) -> ForwardBatch:
        first, *others = [self._tables(begin, end, count) for count in self._counts]
        is_long = self._boundary is not None and len(token_ids) > self._boundary
        return ForwardBatch(
            past_lens=first.past_lens,
            block_indices=first.block_indices,
            block_indices_begins=first.block_indices_begins,
            input_ids=np.array(token_ids[begin:end], dtype=np.int64),
            position_ids=np.arange(begin, end, dtype=np.int64),
            subsequence_begins=np.array([0, end - begin], dtype=np.int32),
            logit_indices=np.arange(first_row, max(first_row, end), dtype=np.int64) - begin,
            max_context_len=end,
            more_tables=tuple(others),
            regimes=None if self._boundary is None else np.full(end - begin, is_long, dtype=np.int64),
        )

    def _tables(self, begin: int, end: int, num_blocks: int) -> BlockTables:
        blocks = np.arange(-(-end // self._block_size), dtype=np.int32) % num_blocks
        return BlockTables(
            np.array([begin], dtype=np.int32), blocks.astype(np.int32), np.array([0, len(blocks)], dtype=np.int32)
        )


# --- the measures -----------------------------------------------------------------------------------------------------


class TokenScores(NamedTuple):
    """Scores of each token. Shapes: all [tokens]; without a reference all but the first are empty.

    `surprises`, `reference_surprises`: minus the log-probability, in nats. `divergences`: KL(reference || model) in
    nats. `agrees`: both have the same most likely token.
    """

    surprises: Array
    reference_surprises: Array
    divergences: Array
    agrees: Array


@dataclass(frozen=True, slots=True)
class Measures:
    """Measures of a text. `divergence_mean`, `divergence_p99`: nats; `agreement`: a share of the tokens."""

    num_tokens: int
    perplexity: float
    reference_perplexity: float | None = None
    divergence_mean: float | None = None
    divergence_p99: float | None = None
    agreement: float | None = None


def score_tokens(logits: Array, targets: Array, reference: Array | None = None) -> TokenScores:
    """The scores of the tokens `targets`, each of which follows a row of logits. Raises: ValueError, unless finite.

    Shapes: logits and reference f32 [tokens, vocab], targets i64 [tokens].
    """
    parts = [
        _scores(logits[rows], targets[rows], None if reference is None else reference[rows])
        for rows in (slice(begin, begin + _ROWS) for begin in range(0, len(targets), _ROWS))
    ]
    return joined_scores(parts)


def joined_scores(parts: Sequence[TokenScores]) -> TokenScores:
    return TokenScores(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def measures_of(scores: TokenScores) -> Measures:
    perplexity = float(np.exp(scores.surprises.mean()))
    if not len(scores.divergences):
        return Measures(len(scores.surprises), perplexity)
    return Measures(
        num_tokens=len(scores.surprises),
        perplexity=perplexity,
        reference_perplexity=float(np.exp(scores.reference_surprises.mean())),
        divergence_mean=float(scores.divergences.mean()),
        divergence_p99=float(np.percentile(scores.divergences, 99)),
        agreement=float(scores.agrees.mean()),
    )


def _scores(logits: Array, targets: Array, reference: Array | None) -> TokenScores:
    totals, places = _log_totals(logits), targets[:, None]
    surprises = totals - np.take_along_axis(logits, places, axis=1)[:, 0]
    if reference is None:
        nothing = np.zeros(0)
        return TokenScores(surprises, nothing, nothing, np.zeros(0, dtype=bool))
    reference_totals = _log_totals(reference)
    probabilities = np.exp(reference - reference_totals[:, None].astype(np.float32))
    # sum of p (log p - log q) with the totals outside of the sum: equal logits give exactly 0
    differences = np.einsum("rv,rv->r", probabilities, reference - logits, dtype=np.float64)
    return TokenScores(
        surprises,
        reference_totals - np.take_along_axis(reference, places, axis=1)[:, 0],
        np.maximum(differences - (reference_totals - totals), 0.0),
        logits.argmax(axis=1) == reference.argmax(axis=1),
    )


def _log_totals(logits: Array) -> Array:
    """The logarithm of the sum of exponentials, f64 [rows]."""
    highest = logits.max(axis=1)
    totals: Array = highest + np.log(np.exp(logits - highest[:, None]).sum(axis=1, dtype=np.float64))
    if not np.isfinite(totals).all():
        raise ValueError("a logit is not a finite number")
    return totals


# --- the report -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Evaluated:
    model: str
    dtype: str
    against: str | None
    against_dtype: str | None
    text: str
    window: int
    stride: int


def evaluation_json(evaluated: Evaluated, measures: Measures) -> str:
    """The measures as one JSON object; unmeasured ones are null."""
    found: dict[str, Any] = asdict(evaluated) | asdict(measures)
    return json.dumps(found) + "\n"


def evaluation_text(evaluated: Evaluated, measures: Measures) -> str:
    rows = [
        ("model", f"{evaluated.model} ({evaluated.dtype})"),
        ("text", f"{measures.num_tokens} tokens of {evaluated.text}, in windows of {evaluated.window}"),
        ("perplexity", f"{measures.perplexity:.4f}"),
    ]
    if measures.divergence_mean is not None:
        rows += [
            ("against", f"{evaluated.against} ({evaluated.against_dtype})"),
            ("its perplexity", f"{measures.reference_perplexity:.4f}"),
            ("KL divergence", f"{measures.divergence_mean:.6f} nats, 99th percentile {measures.divergence_p99:.6f}"),
            ("top-1 agreement", f"{measures.agreement:.2%}"),
        ]
    return "".join(f"{name:<16} {value}\n" for name, value in rows)
