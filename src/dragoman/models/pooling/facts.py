"""Facts of a model that embeds or scores texts, the same for all families. Immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["embed", "score", "classify", "sparse", "tokens"]
PoolingMode = Literal["cls", "mean", "max", "last", "mean_sqrt_len", "weightedmean"]
POOLING_MODES: tuple[PoolingMode, ...] = ("cls", "mean", "max", "last", "mean_sqrt_len", "weightedmean")

Kept = Literal["all", "first", "last"]
"""The tokens of a text whose last hidden states are wanted."""


@dataclass(frozen=True, slots=True)
class TextFacts:
    """A network over whole texts. `max_tokens`: the longest text that it has positions for.

    `first_position`: of a text's first token. `num_types`: kinds of tokens (of a pair's first and second text), 1 =
    all alike. `window_reach`: how far layers with windows look to either side, 0 = there are none. `num_distances`:
    the largest distance that biases tell apart is one less, 0 = there are none. `num_tasks`: of adapters, each of
    `task_rank` rows.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    max_tokens: int
    first_position: int = 0
    is_causal: bool = False
    num_types: int = 1
    window_reach: int = 0
    num_distances: int = 0
    num_tasks: int = 0
    task_rank: int = 0


@dataclass(frozen=True, slots=True)
class DenseModule:
    path: str
    num_inputs: int
    num_outputs: int
    has_bias: bool
    activation: str


@dataclass(frozen=True, slots=True)
class PairTemplate:
    before: str
    body: str  # with {instruction}, {query}, {document}
    after: str
    instruction: str


@dataclass(frozen=True, slots=True)
class SparseRule:
    """The rule from logits to weights of words, as in SPLADE. `sums`: add up all tokens, else take the highest."""

    sums: bool = False
    logarithms: int = 1


@dataclass(frozen=True, slots=True)
class LateRule:
    """The rule for writing texts for late interaction, as in ColBERT. `expands`: queries are filled up with `mask_token`.

    `sees_expansion`: other tokens see these. `skipped`: words of documents whose vectors do not count.
    """

    query_prefix: str
    document_prefix: str
    query_length: int = 32
    document_length: int = 180
    expands: bool = True
    sees_expansion: bool = False
    skipped: tuple[str, ...] = ()
    mask_token: str = "[MASK]"


@dataclass(frozen=True, slots=True)
class Recipe:
    """The use of a network, by its directory. `pooling`: from tokens' vectors to one; several = side by side.

    `includes_prompt` False: without the prompt's tokens. `denses`: products behind it. `max_tokens` None = as the
    network. `prompts`, `default_prompt_name`, `similarity`: as sentence-transformers lists them. `tasks`: prompts
    with an adapter of the network, in the adapters' order. `activation`: of a score. `labels`: the classes, in the
    order of the head's outputs. `answer_ids`: the tokens that a causal model's score compares, (yes, no) or (yes,).
    `template` None = pairs are two texts in one sequence. `departures`: for people, at the start.
    """

    kind: Kind
    pooling: tuple[PoolingMode, ...] = ()
    includes_prompt: bool = True
    denses: tuple[DenseModule, ...] = ()
    is_normalized: bool = False
    max_tokens: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    similarity: str = "cosine"
    tasks: tuple[str, ...] = ()
    activation: str = ""
    labels: tuple[str, ...] = ()
    sparse: SparseRule | None = None
    late: LateRule | None = None
    answer_ids: tuple[int, ...] = ()
    template: PairTemplate | None = None
    lowers_case: bool = False
    departures: tuple[str, ...] = ()
