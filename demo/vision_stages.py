"""The two stages in which the demo vision model learns: what each step's loss is.

``TowerStage`` teaches tower and connector alone to say what is where, by heads that are thrown away; ``WholeStage``
teaches everything together to answer questions about pictures, mixed with the text model's own text. Called by
``demo/vision_train.py``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from random import Random

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from demo.pictures.cache import SHARD, scenes_of
from demo.pictures.labels import NUM_FACTS, NUM_VALUES, cells, facts_of
from demo.pictures.prepare import GRID
from demo.pictures.render import NUM_CLASSES
from demo.pictures.scene import COLORS, SHAPES, Scene
from demo.train import batches, loss_of, rounded
from demo.vision_documents import Coded, blind, coded, coded_documents
from demo.vision_model import SHUFFLE, DemoVision

NUM_QUERIES = 12
BLIND = 12  # one question about a picture that is not there for so many pictures
FIRST_DIGIT_FACT = 1 + len(SHAPES) + len(COLORS)
NUM_DIGITS = 2
WEIGHTS = {"digits": 2.0, "cell_shapes": 4.0, "cell_colors": 4.0, "facts": 2.0, "rows": 0.5, "columns": 0.5}
Notes = dict[str, float]


def load_tokenizer() -> Tokenizer:
    """The demo vision model's own."""
    return Tokenizer.from_file("src/dragoman/demo_vision_model/tokenizer.json")


def shards(folder: Path, rank: int, workers: int, rng: Random) -> Iterator[int]:
    """Endless numbers of this worker's shards in random order; new ones are found after each round."""
    while True:
        found = sorted(int(path.stem) for path in folder.glob("*.npz"))[rank::workers]
        rng.shuffle(found)
        yield from found


@dataclass(frozen=True)
class Labels:
    """What the tower should see in each picture of a batch: arrays whose first axis is the picture."""

    things: np.ndarray
    colors: np.ndarray
    cell_shapes: np.ndarray
    cell_colors: np.ndarray
    facts: np.ndarray

    def of(self, kept: np.ndarray | list[int]) -> "Labels":
        """Those of the pictures with these indices."""
        return Labels(*(getattr(self, field.name)[kept] for field in fields(self)))

    def tensors(self) -> dict[str, Tensor]:
        """Class numbers by the name of the head that tells them."""
        return {field.name: torch.from_numpy(getattr(self, field.name).astype(np.int64)) for field in fields(self)}


def load_shard(folder: Path, shard: int) -> tuple[list[Scene], np.ndarray, Labels]:
    """A shard's scenes, their pictures and what they show."""
    with np.load(folder / f"{shard}.npz") as data:
        pixels, things, colors = data["pictures"], data["things"], data["colors"]
    scenes = scenes_of(shard)
    both = [cells(scene, GRID // SHUFFLE) for scene in scenes]
    shapes, paints = (np.stack(part) for part in zip(*both, strict=True))
    return scenes, pixels, Labels(things, colors, shapes, paints, np.array([facts_of(scene) for scene in scenes]))


class WordHead(nn.Module):
    """Class scores by likeness to the text model's own vectors of words, class 0 being none of them.

    An embedding then says "red" and "circle" nearly as a text would, which the text model knows how to look up and repeat.
    """

    def __init__(self, words: Sequence[str], tokenizer: Tokenizer) -> None:
        """``words``: as they stand in a text, mostly behind a space; of each its first token."""
        super().__init__()
        self.ids = [tokenizer.encode(word, add_special_tokens=False).ids[0] for word in words]
        self.shift = nn.Parameter(torch.zeros(len(words) + 1))

    def forward(self, embeddings: Tensor, vectors: Tensor) -> Tensor:
        rows = vectors[self.ids].detach()
        return F.linear(embeddings, F.pad(rows, (0, 0, 1, 0))) + self.shift


class Heads(nn.Module):
    """What is asked of the tower: each patch, each embedding, and all of them together."""

    def __init__(self, tower_size: int, size: int, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.things, self.colors = nn.Linear(tower_size, NUM_CLASSES), nn.Linear(tower_size, len(COLORS) + 1)
        self.cell_shapes = WordHead([f" {shape}" for shape in SHAPES], tokenizer)
        self.cell_colors = WordHead([f" {color}" for color in COLORS], tokenizer)
        self.rows, self.columns = WordHead((" top", " bottom"), tokenizer), WordHead((" left", " right"), tokenizer)
        self.digits = WordHead("0123456789", tokenizer)
        self.queries = nn.Parameter(torch.randn(NUM_QUERIES, size) * 0.02)
        self.facts = nn.Linear(NUM_QUERIES * size, NUM_FACTS * NUM_VALUES)

    def pooled(self, embeddings: Tensor) -> Tensor:
        """``[batch, facts, values]`` from all embeddings of a picture, by one attention step."""
        mass = torch.softmax(embeddings @ self.queries.T, dim=1)
        gathered = mass.transpose(1, 2) @ embeddings
        return self.facts(gathered.flatten(1)).view(-1, NUM_FACTS, NUM_VALUES)

    def scores(self, patches: Tensor, embeddings: Tensor, vectors: Tensor) -> dict[str, Tensor]:
        """Every head's scores by its name, classes last."""
        return {
            "things": self.things(patches),
            "colors": self.colors(patches),
            "cell_shapes": self.cell_shapes(embeddings, vectors),
            "cell_colors": self.cell_colors(embeddings, vectors),
            "rows": self.rows(embeddings, vectors),
            "columns": self.columns(embeddings, vectors),
            "digits": self.digits(embeddings[:, :NUM_DIGITS], vectors),
            "facts": self.pooled(embeddings),
        }


class Pretrained(nn.Module):
    """Tower, connector, text model and heads."""

    def __init__(self, vision: DemoVision, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.vision = vision
        self.heads = Heads(vision.projection.in_features // SHUFFLE**2, vision.projection.out_features, tokenizer)

    def dense(self, patches: Tensor, embeddings: Tensor, labels: Labels, bfloat16: bool) -> tuple[Tensor, Notes]:
        """The sum of all heads' losses, and what to log."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
            scores = self.heads.scores(patches, embeddings, self.vision.text.model.embed_tokens.weight)
        wanted = {**labels.tensors(), **place_labels(len(patches)), "digits": digit_labels(labels)}
        losses = {name: F.cross_entropy(scores[name].float().flatten(0, 1), wanted[name].flatten()) for name in scores}
        notes = {name: float(loss.detach()) for name, loss in losses.items()}
        total = sum((loss * WEIGHTS.get(name, 1.0) for name, loss in losses.items()), torch.zeros(()))
        return total, {**notes, **shares_right(scores["facts"].argmax(-1), wanted["facts"])}


def place_labels(count: int) -> dict[str, Tensor]:
    """Of every embedding of ``count`` pictures: top, bottom or neither; left, right or neither."""
    side = GRID // SHUFFLE
    rank = torch.zeros(side, dtype=torch.int64)
    rank[0], rank[-1] = 1, 2
    return {
        "rows": rank.repeat_interleave(side).expand(count, -1),
        "columns": rank.repeat(side).expand(count, -1),
    }


def digit_labels(labels: Labels) -> Tensor:
    """What the first embeddings say besides what lies there: tens and units of the number, 0 = there are none."""
    digits = torch.from_numpy(labels.facts[:, FIRST_DIGIT_FACT : FIRST_DIGIT_FACT + NUM_DIGITS].astype(np.int64))
    return torch.where(digits < 10, digits + 1, 0)


def shares_right(read: Tensor, facts: Tensor) -> Notes:
    """How often a count, a digit and what a chart shows are right, ``[batch, facts]`` each."""
    right = read == facts
    last = FIRST_DIGIT_FACT
    is_number, is_chart = facts[:, last + 1] < 10, facts[:, last + 2] > 0
    hits = {
        "ok_total": right[~is_number & ~is_chart, 0],
        "ok_tens": right[is_number, last],
        "ok_units": right[is_number, last + 1],
        "ok_bars": right[is_chart, last + 2],
        "ok_tallest": right[is_chart, last + 3],
    }
    return {name: float(part.float().mean()) for name, part in hits.items() if len(part)}


def trained_parameters(module: Pretrained, stage: str) -> list[nn.Parameter]:
    """What a stage changes: the first one all but the text model."""
    is_whole = stage == "whole"
    return [p for name, p in module.named_parameters() if is_whole or not name.startswith("vision.text.")]


class TowerStage:
    """Batches of pictures with dense labels."""

    def __init__(self, folder: Path, rank: int, workers: int, seed: int, size: int) -> None:
        self.rng, self.size, self.folder = Random(f"tower {seed} {rank}"), size, folder
        self.numbers = shards(folder, rank, workers, self.rng)
        self.source = self.draw()
        self.notes: Notes = {}

    def draw(self) -> Iterator[tuple[np.ndarray, Labels]]:
        """Endless batches."""
        while True:
            _, pixels, labels = load_shard(self.folder, next(self.numbers))
            order = np.array(self.rng.sample(range(SHARD), SHARD))
            for begin in range(0, SHARD - self.size + 1, self.size):
                kept = order[begin : begin + self.size]
                yield pixels[kept], labels.of(kept)

    def loss(self, module: Pretrained, bfloat16: bool) -> Tensor:
        """The sum of all heads' losses on the next batch."""
        pixels, labels = next(self.source)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
            patches = module.vision.tower(torch.from_numpy(pixels), self.rng.random() < 0.5)
            embeddings = module.vision.embeddings_of(patches)
        total, self.notes = module.dense(patches, embeddings, labels, bfloat16)
        return total


class WholeStage:
    """Batches of chats about pictures and of the text model's text."""

    def __init__(self, folder: Path, rank: int, workers: int, seed: int, tokens: tuple[int, int]) -> None:
        """``tokens``: of pictures and of text in a batch."""
        self.rng, self.folder, self.tokens = Random(f"whole {seed} {rank}"), folder, tokens[0]
        self.numbers = shards(folder, rank, workers, self.rng)
        self.tokenizer = load_tokenizer()
        self.source = self.draw()
        self.text = batches(self.tokenizer, seed * 100 + rank, tokens[1], 0.5)
        self.notes: Notes = {}

    def draw(self) -> Iterator[tuple[np.ndarray, Labels, list[Coded]]]:
        """Endless batches of documents about one picture each, with their pictures; those without come last."""
        while True:
            scenes, pixels, labels = load_shard(self.folder, next(self.numbers))
            documents = coded_documents(self.tokenizer, scenes, self.rng)
            documents += coded(self.tokenizer, [blind(self.rng) for _ in range(len(scenes) // BLIND)])
            for group in grouped(documents, self.tokens, self.rng):
                shown = [index for index in group if index < len(scenes)]
                hidden = [index for index in group if index >= len(scenes)]
                if shown:
                    yield pixels[shown], labels.of(shown), [documents[index] for index in shown + hidden]

    def loss(self, module: Pretrained, bfloat16: bool) -> Tensor:
        """The loss on answers about pictures, on text, and on what the first stage taught."""
        pixels, labels, documents = next(self.source)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
            patches = module.vision.tower(torch.from_numpy(pixels), self.rng.random() < 0.5)
            embeddings = module.vision.embeddings_of(patches)
        about, hits = picture_loss(module.vision, embeddings, documents, bfloat16)
        text = loss_of(module.vision.text, next(self.text), bfloat16)
        dense, notes = module.dense(patches, embeddings, labels, bfloat16)
        self.notes = {"pictures": float(about.detach()), "text": float(text.detach()), "hits": hits, **notes}
        return 2.0 * about + 0.7 * text + 0.2 * dense


def grouped(documents: list[Coded], tokens: int, rng: Random) -> list[list[int]]:
    """Indices of documents of about the same length, in groups of about ``tokens`` tokens, shuffled."""
    order = sorted(range(len(documents)), key=lambda index: len(documents[index][0]))
    groups: list[list[int]] = [[]]
    for index in order:
        if groups[-1] and (len(groups[-1]) + 1) * rounded(len(documents[index][0])) > tokens:
            groups.append([])
        groups[-1].append(index)
    rng.shuffle(groups)
    return groups


def padded(documents: list[Coded]) -> tuple[Tensor, Tensor]:
    """Ids and loss weights, padded on the right."""
    width = rounded(max(len(ids) for ids, _ in documents))
    data, mass = np.zeros((len(documents), width), np.int64), np.zeros((len(documents), width), np.float32)
    for row, (ids, weights) in enumerate(documents):
        data[row, : len(ids)], mass[row, : len(ids)] = ids, weights
    return torch.from_numpy(data), torch.from_numpy(mass)


def picture_loss(
    module: DemoVision, embeddings: Tensor, documents: list[Coded], bfloat16: bool
) -> tuple[Tensor, float]:
    """The weighted loss, and the share of answer tokens that greedy decoding would get right."""
    ids, mass = padded(documents)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
        states = module.hidden(ids[:, :-1], embeddings)
        kept = mass[:, 1:].reshape(-1).nonzero()[:, 0]
        scores = module.text.logits(states.reshape(-1, states.shape[-1])[kept]).float()
    targets, weights = ids[:, 1:].reshape(-1)[kept], mass[:, 1:].reshape(-1)[kept]
    losses = F.cross_entropy(scores, targets, reduction="none")
    return (losses * weights).sum() / weights.sum(), float((scores.argmax(-1) == targets).float().mean())
