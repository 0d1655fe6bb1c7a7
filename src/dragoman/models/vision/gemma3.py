"""Gemma 3: SigLIP's patches pooled to a fixed number. No crops (pan and scan). Source: arXiv:2503.19786."""

from __future__ import annotations

from math import isqrt

from openvino import opset13 as ops

from dragoman.models.blocks.linear import linear
from dragoman.models.blocks.nodes import integers, reshape
from dragoman.models.blocks.norms import rms_norm
from dragoman.models.config import Config
from dragoman.models.facts import PictureFacts
from dragoman.models.storage.constants import Node
from dragoman.models.vision import pixels
from dragoman.models.vision.base import PictureLayout, PictureProcessor, TowerGraph, VisionFamily
from dragoman.models.vision.blocks import tower_input
from dragoman.models.vision.llava import PIXELS, WholePictures
from dragoman.models.vision.transformer import SIGLIP, projector_weights, read_transformer, tower_weights
from dragoman.models.weights import Weights

_PROJECTION = "mm_input_projection_weight"


class Gemma3(VisionFamily):
    def __init__(self, config: Config, hidden_size: int) -> None:
        described = config.part("vision_config") or Config({}, "config.json vision_config")
        self.transformer = read_transformer(described, SIGLIP, {})
        config.rename({"image_token_id": "image_token_index"})
        self.facts = PictureFacts(config.count("image_token_index", 262144, least=0), is_bidirectional=True)
        self.hidden_size = hidden_size
        self.num_embeddings = config.count("mm_tokens_per_image", 256)
        self.rows = isqrt(self.num_embeddings)  # and columns
        self.pool = self.transformer.side // self.rows  # patches of each side of what becomes one embedding
        if self.rows**2 != self.num_embeddings or not self.pool or self.transformer.side // self.pool != self.rows:
            patches = f"{self.transformer.side} x {self.transformer.side}"
            raise config.error("mm_tokens_per_image", f"a square number of which {patches} patches can be pooled")

    def processor(self, described: Config) -> PictureProcessor:
        pixels.read_kind(described, ("Gemma3",))
        size = self.transformer.image_size
        steps = pixels.read_steps(described, 224, crops=False, numbers=(pixels.HALVES, pixels.HALVES))
        if steps.shape != (size, size):
            raise described.error("size", f"a size that makes every picture {size} x {size} pixels, as the tower needs")
        described.expect(do_pad=False, do_pan_and_scan=False, image_seq_length=self.num_embeddings)
        described.skip(*(f"pan_and_scan_{key}" for key in ("max_num_crops", "min_crop_size", "min_ratio_to_activate")))
        begin, placeholder, end = (
            pixels.read_text(described, key, default)
            for key, default in (
                ("boi_token", "<start_of_image>"),
                ("image_token", "<image_soft_token>"),
                ("eoi_token", "<end_of_image>"),
            )
        )
        pixels.refuse_unread(described)
        text = f"\n\n{begin}{placeholder * self.num_embeddings}{end}\n\n"
        return WholePictures(begin, PictureLayout(text, self.num_embeddings), steps)

    def tower(self, weights: Weights) -> TowerGraph:
        size = self.transformer.image_size
        tiles = tower_input(PIXELS, -1, 3, size, size)
        states = tower_weights(weights)
        last = self.transformer.num_layers
        x = self.transformer.states(tiles.output(0), states, [last])[last]
        pooled = self._pooled(self.transformer.last_norm(x, states))
        projector = projector_weights(weights, _PROJECTION)
        normed = rms_norm(pooled, projector.at("mm_soft_emb_norm"), self.transformer.layer.epsilon, offset=1.0)
        return TowerGraph(linear(normed, projector.renamed(weight=_PROJECTION).transposed(), self.hidden_size), [tiles])

    def _pooled(self, x: Node) -> Node:
        """Means of squares of patches. Shapes: [N, patches, hidden] -> [N * embeddings, hidden]."""
        rows, pool, side, hidden = self.rows, self.pool, self.transformer.side, self.transformer.hidden_size
        square = reshape(x, -1, side, side, hidden)
        whole = ops.slice(square, integers(0, 0), integers(rows * pool, rows * pool), integers(1, 1), integers(1, 2))
        cut = reshape(whole.output(0), -1, rows, pool, rows, pool, hidden)
        return reshape(ops.reduce_mean(cut, integers(2, 4), False).output(0), -1, hidden)
