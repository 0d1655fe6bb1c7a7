"""The two stages in which the demo vision model learns: what each step's loss is.

``TowerStage`` teaches tower and connector alone to say what is where, by heads that are thrown away; ``WholeStage``
teaches everything together to answer questions about pictures, mixed with the text model's own text. Called by
``demo/vision_train.py``.
"""

from collections.abc import Iterator
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


def shards(folder: Path, rank: int, workers: int, rng: Random) -> Iterator[int]:
    """Endless numbers of this worker's shards in random order; new ones are found after each round."""
    while True:
        found = sorted(int(path.stem) for path in folder.glob("*.npz"))[rank::workers]
        rng.shuffle(found)
        yield from found


class Heads(nn.Module):
    """What the first stage asks of the tower: each patch, each embedding, and all of them together."""

    def __init__(self, tower_size: int, size: int) -> None:
        super().__init__()
        self.things, self.colors = nn.Linear(tower_size, NUM_CLASSES), nn.Linear(tower_size, len(COLORS) + 1)
        self.cell_shapes, self.cell_colors = nn.Linear(size, len(SHAPES) + 1), nn.Linear(size, len(COLORS) + 1)
        self.queries = nn.Parameter(torch.randn(NUM_QUERIES, size) * 0.02)
        self.facts = nn.Linear(NUM_QUERIES * size, NUM_FACTS * NUM_VALUES)

    def pooled(self, embeddings: Tensor) -> Tensor:
        """``[batch, facts, values]`` from all embeddings of a picture, by one attention step."""
        mass = torch.softmax(embeddings @ self.queries.T, dim=1)
        gathered = mass.transpose(1, 2) @ embeddings
        return self.facts(gathered.flatten(1)).view(-1, NUM_FACTS, NUM_VALUES)


class Pretrained(nn.Module):
    """Tower, connector and heads."""

    def __init__(self, vision: DemoVision) -> None:
        super().__init__()
        self.vision = vision
        self.heads = Heads(vision.projection.in_features // SHUFFLE**2, vision.projection.out_features)


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
        self.notes: dict[str, float] = {}

    def draw(self) -> Iterator[tuple[Tensor, ...]]:
        """Endless batches: pixels, things, colors, cells' shapes and colors, facts."""
        while True:
            shard = next(self.numbers)
            with np.load(self.folder / f"{shard}.npz") as data:
                pixels, things, colors = data["pictures"], data["things"], data["colors"]
            scenes = scenes_of(shard)
            both = [cells(scene, GRID // SHUFFLE) for scene in scenes]
            rows = [np.stack(part) for part in zip(*both, strict=True)]
            facts = np.array([facts_of(scene) for scene in scenes])
            order = np.array(self.rng.sample(range(SHARD), SHARD))
            for begin in range(0, SHARD - self.size + 1, self.size):
                kept = order[begin : begin + self.size]
                yield tuple(
                    torch.from_numpy(part[kept] if part is pixels else part[kept].astype(np.int64))
                    for part in (pixels, things, colors, *rows, facts)
                )

    def loss(self, module: Pretrained, bfloat16: bool) -> Tensor:
        """The sum of all heads' losses on the next batch."""
        pixels, things, colors, shapes, paints, facts = next(self.source)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
            patches = module.vision.tower(pixels, self.rng.random() < 0.5)
            embeddings = module.vision.embeddings_of(patches)
            heads = module.heads
            scores = [heads.things(patches), heads.colors(patches), heads.cell_shapes(embeddings)]
            scores += [heads.cell_colors(embeddings), heads.pooled(embeddings)]
        total = torch.zeros(())
        names = ("things", "colors", "shapes", "paints", "facts")
        for name, score, wanted in zip(names, scores, (things, colors, shapes, paints, facts), strict=True):
            part = F.cross_entropy(score.float().flatten(0, 1), wanted.flatten())
            self.notes[name] = float(part.detach())
            total = total + part * (4.0 if name in ("shapes", "paints") else 2.0 if name == "facts" else 1.0)
        right = scores[-1].argmax(-1) == facts
        last = 1 + len(SHAPES) + len(COLORS)
        is_number, is_chart = facts[:, last + 1] < 10, facts[:, last + 2] > 0
        for name, hits in (
            ("total", right[~is_number & ~is_chart, 0]),
            ("tens", right[is_number, last]),
            ("units", right[is_number, last + 1]),
            ("bars", right[is_chart, last + 2]),
            ("tallest", right[is_chart, last + 3]),
        ):
            if len(hits):
                self.notes["ok_" + name] = float(hits.float().mean())
        return total


class WholeStage:
    """Batches of chats about pictures and of the text model's text."""

    def __init__(
        self, folder: Path, rank: int, workers: int, seed: int, tokens: tuple[int, int], dense: TowerStage
    ) -> None:
        """``tokens``: of pictures and of text in a batch; ``dense``: goes on teaching the tower what the first stage did."""
        self.rng, self.folder, self.tokens, self.dense = Random(f"whole {seed} {rank}"), folder, tokens[0], dense
        self.numbers = shards(folder, rank, workers, self.rng)
        self.tokenizer = Tokenizer.from_file("src/dragoman/demo_vision_model/tokenizer.json")
        self.source = self.draw()
        self.text = batches(self.tokenizer, seed * 100 + rank, tokens[1], 0.5)
        self.notes: dict[str, float] = {}

    def draw(self) -> Iterator[tuple[np.ndarray, list[Coded]]]:
        """Endless batches of documents about one picture each, with their pictures."""
        while True:
            shard = next(self.numbers)
            with np.load(self.folder / f"{shard}.npz") as data:
                pixels = data["pictures"]
            scenes = scenes_of(shard)
            chosen = [index for index, scene in enumerate(scenes) if self.rng.random() < share_of(scene)]
            scenes, pixels = [scenes[index] for index in chosen], pixels[chosen]
            documents = coded_documents(self.tokenizer, scenes, self.rng)
            documents += coded(self.tokenizer, [blind(self.rng) for _ in range(len(scenes) // BLIND)])
            for group in grouped(documents, self.tokens, self.rng):
                shown = [index for index in group if index < len(scenes)]
                yield pixels[shown], [documents[index] for index in group]

    def loss(self, module: Pretrained, bfloat16: bool) -> Tensor:
        """The loss on answers about pictures, on text, and on what the first stage taught."""
        pixels, documents = next(self.source)
        about, hits = picture_loss(module.vision, pixels, documents, bfloat16, self.rng.random() < 0.5)
        text = loss_of(module.vision.text, next(self.text), bfloat16)
        dense = self.dense.loss(module, bfloat16)
        self.notes = {"pictures": float(about.detach()), "text": float(text.detach()), "hits": hits, **self.dense.notes}
        return about + 0.7 * text + 0.3 * dense


def share_of(scene: Scene) -> float:
    """How many pictures of its kind to ask about: few of those with several shapes, whose questions are the hardest."""
    return 0.45 if len(scene.items) > 1 else 0.8 if scene.chart else 1.0


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


def answer_scores(
    module: DemoVision, pixels: np.ndarray, documents: list[Coded], bfloat16: bool, shifted: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores, targets and weights of the tokens that have a weight, and in which document each is."""
    ids, mass = padded(documents)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
        embeddings = module.embed(torch.from_numpy(pixels), shifted) if len(pixels) else None
        states = module.hidden(ids[:, :-1], embeddings)
        kept = mass[:, 1:].reshape(-1).nonzero()[:, 0]
        scores = module.text.logits(states.reshape(-1, states.shape[-1])[kept]).float()
    return scores, ids[:, 1:].reshape(-1)[kept], mass[:, 1:].reshape(-1)[kept], kept // (ids.shape[1] - 1)


def picture_loss(
    module: DemoVision, pixels: np.ndarray, documents: list[Coded], bfloat16: bool, shifted: bool
) -> tuple[Tensor, float]:
    """The weighted loss, and the share of answer tokens that greedy decoding would get right."""
    scores, targets, mass, _ = answer_scores(module, pixels, documents, bfloat16, shifted)
    losses = F.cross_entropy(scores, targets, reduction="none")
    return (losses * mass).sum() / mass.sum(), float((scores.argmax(-1) == targets).float().mean())
