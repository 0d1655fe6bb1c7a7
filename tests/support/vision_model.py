"""Runs a recorded model that sees: its processor, its tower, its decoder, each by itself, and measures them.

Does: load a case of tests/models/vision, embed pictures, compute logits of a prompt, compare with what was recorded. Does
not: judge. Used by the tests of towers.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from dragoman.models import BLOCK_SIZE, ModelOptions
from dragoman.models.blocks.step import PICTURE_EMBEDDINGS, PICTURE_ROWS, ROTARY_POSITIONS, TOKEN_TYPES
from dragoman.models.config import Config
from dragoman.models.families import read_model
from dragoman.models.loader import cache_ports, compile_source
from dragoman.models.profile import kernel_profile
from dragoman.models.sources.safetensors import Checkpoint
from dragoman.models.storage.constants import WeightStorage
from dragoman.models.storage.row_parts import RowParts
from dragoman.models.vision.base import PictureProcessor, VisionFamily
from dragoman.models.vision.tower import Tower
from dragoman.models.weights import Weights
from dragoman.types import Detail, Picture
from tests.support.family_checkpoint import Array, recorded_name
from tests.support.vision_checkpoint import (
    CASES,
    checksum,
    draw,
    prompt_pieces,
    read_vision_case,
    sampled,
    token_ids,
    write_vision_case,
)


def relative_error(found: Array, expected: Array) -> float:
    """Root-mean-square difference, relative to what is expected."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))


def embedded(tower: Tower, picture: Picture, detail: Detail = "auto") -> Array:
    """What a tower returns for a picture, all its parts computed."""
    parts = tower.embed(picture, detail)
    while True:
        try:
            next(parts)
        except StopIteration as end:
            embeddings: Array = end.value
            return embeddings


class SeeingModel:
    """A recorded case, loaded from a directory that it is written to."""

    def __init__(self, name: str, directory: Path, options: ModelOptions) -> None:
        self.name = name
        self.case = read_vision_case(name)
        with np.load(CASES / f"{recorded_name(CASES, name)}.npz") as arrays:
            self.reference = dict(arrays)
        self._directory = write_vision_case(name, self.case, directory)
        self._options = options

    @cached_property
    def vision(self) -> VisionFamily:
        """The seeing part."""
        vision = read_model(self.case["config"], sees=True).vision
        assert vision is not None
        return vision

    @cached_property
    def processor(self) -> PictureProcessor:
        """What prepares the pictures."""
        return self.vision.processor(Config(self.case["preprocessor"], "preprocessor_config.json"))

    def picture(self, name: str) -> Picture:
        """One of the case's pictures."""
        return draw(self.case["pictures"][name])

    def pixel_errors(self, name: str) -> tuple[float, float]:
        """Largest difference from the reference's array for the tower, and that of the two arrays' checksums."""
        pixels = self.processor.inputs(self.picture(name), "auto")["pixel_values"]
        expected = [size for size in self.reference[f"shape_{name}"] if size != 1]
        assert [size for size in pixels.shape if size != 1] == expected, (pixels.shape, expected)
        difference = np.max(np.abs(sampled(pixels) - self.reference[f"pixels_{name}"]))
        return float(difference), abs(checksum(pixels) - float(self.reference[f"checksum_{name}"]))

    def picture_ids(self, name: str) -> list[int]:
        """The tokens that a picture becomes, with those that the chat template writes around it."""
        picture = self.picture(name)
        layout = self.processor.layout(picture.width, picture.height, "auto")
        ids = token_ids(self.case, self.case["marker"].replace(self.processor.marker, layout.text))
        assert ids.count(self.vision.facts.placeholder_id) == layout.num_embeddings
        return ids

    def embed(self, picture: Picture, detail: Detail = "auto") -> Array:
        """What stands in the places of the picture's placeholders. Shape: f32 [placeholders, hidden * levels]."""
        return embedded(Tower(self._parts, [], self.vision.facts, self.processor), picture, detail)

    def tower_nodes(self) -> Counter[str]:
        """The kinds of nodes that the compiled tower is made of."""
        nodes: list[Any] = [node for part in self._parts for node in part.get_runtime_model().get_ops()]
        return Counter(str(node.get_rt_info()["layerType"].astype(str)) for node in nodes)

    def embedding_error(self, name: str) -> float:
        """Relative difference of a picture's embeddings."""
        return relative_error(sampled(self.embed(self.picture(name))), self.reference[f"embeddings_{name}"])

    def prompt_ids(self, index: int) -> list[int]:
        """The tokens of a prompt."""
        ids = []
        for kind, piece in prompt_pieces(self.name, self.case, index):
            ids += self.picture_ids(piece) if kind == "picture" else token_ids(self.case, piece)
        return ids

    def prompt_pictures(self, index: int) -> list[Picture]:
        """The pictures of a prompt, in order."""
        pieces = prompt_pieces(self.name, self.case, index)
        return [self.picture(piece) for kind, piece in pieces if kind == "picture"]

    def positions(self, index: int) -> Array:
        """The three positions of each of a prompt's tokens. Shape: i64 [3, T]; [3, 0] where tokens have one."""
        known = self.reference.get(f"positions_{index}", np.zeros((3, 0)))
        return np.asarray(known, dtype=np.int64)

    def logit_error(self, index: int) -> float:
        """Relative difference of the logits of a prompt's last positions."""
        expected = self.reference[f"logits_{index}"]
        logits = self.logits(self.prompt_ids(index), self.prompt_pictures(index), self.positions(index))
        return relative_error(logits[-len(expected) :, self.reference["columns"]], expected)

    @cached_property
    def _parts(self) -> list[Any]:
        profile = kernel_profile(self._options)
        with Checkpoint(self._directory) as checkpoint, RowParts() as parts:
            graphs = self.vision.build(Weights(checkpoint, WeightStorage(profile.weights, parts)))
            parts.finish()
            return [ov.Core().compile_model(graph, "CPU", dict(profile.properties)) for graph in graphs]

    @cached_property
    def _decoder(self) -> Any:
        with Checkpoint(self._directory) as checkpoint:
            return compile_source(read_model(self.case["config"], sees=True), checkpoint, self._options)

    def logits(self, ids: list[int], pictures: list[Picture], positions: Array) -> Array:
        """Of every token of a prompt in one step, the pictures' embeddings in the places of the placeholders, in order."""
        loaded = self._decoder
        count, blocks = len(ids), -(-len(ids) // BLOCK_SIZE)
        rows = np.flatnonzero(np.array(ids) == self.vision.facts.placeholder_id)
        width = loaded.facts.hidden_size * self.vision.facts.num_levels
        embeddings = [self.embed(picture) for picture in pictures]
        values = {
            "input_ids": np.array(ids, dtype=np.int64),
            "position_ids": np.arange(count, dtype=np.int64),
            "rotary_regime": np.zeros(count, dtype=np.int64),
            "past_lens": np.zeros(1, dtype=np.int32),
            "subsequence_begins": np.array([0, count], dtype=np.int32),
            "block_indices": np.arange(blocks, dtype=np.int32),
            "block_indices_begins": np.array([0, blocks], dtype=np.int32),
            "max_context_len": np.array(count, dtype=np.int32),
            "sampled_tokens_indices": np.arange(count, dtype=np.int64),
            PICTURE_ROWS: rows.astype(np.int64),
            PICTURE_EMBEDDINGS: np.concatenate([*embeddings, np.zeros((0, width), dtype=np.float32)]),
            TOKEN_TYPES: np.isin(np.arange(count), rows).astype(np.int32),
            ROTARY_POSITIONS: positions,
        }
        request = loaded.compiled.create_infer_request()
        for port in cache_ports(loaded.compiled):
            shape = [blocks, *(dimension.get_length() for dimension in list(port.get_partial_shape())[1:])]
            table = ov.Tensor(port.get_element_type(), ov.Shape(shape))
            table.data[...] = 0
            request.set_tensor(port, table)
        caches = {port.get_any_name() for port in cache_ports(loaded.compiled)}
        for port in loaded.compiled.inputs:
            name = port.get_any_name()
            if name not in caches:
                known = name if name in values else name.rpartition(".")[0]  # "past_lens.1" as "past_lens"
                request.set_tensor(port, ov.Tensor(values[known]))
        request.infer()
        logits: Array = request.get_output_tensor(0).data.copy()
        return logits
