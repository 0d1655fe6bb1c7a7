"""The text models of Qwen's models that see: their tokens have three positions, for `axes`.

Source: Qwen2-VL (arXiv:2409.12191), section 2.1; the Qwen3-VL release.
"""

from __future__ import annotations

from dragoman.models.config import Config
from dragoman.models.families.qwen import Qwen2, Qwen3
from dragoman.models.families.qwen3_5 import Qwen35
from dragoman.models.families.qwen_experts import Qwen3Experts
from dragoman.models.families.qwen_next import Qwen35Experts


class Qwen2Vision(Qwen2):
    """Qwen2-VL and Qwen2.5-VL: the axes' sections lie one after the other."""

    axes = "sections"


class Qwen3Vision(Qwen3):
    """Qwen3-VL: the axes take turns."""

    axes = "turns"


class Qwen3VisionExperts(Qwen3Vision, Qwen3Experts):
    """Experts that lie in two tensors, stored by columns, or each in its own."""

    are_turned = True

    def __init__(self, config: Config) -> None:
        config.assume(norm_topk_prob=True)
        config.expect(norm_topk_prob=True)
        super().__init__(config)


class Qwen35Vision(Qwen35):
    axes = "turns"


class Qwen35VisionExperts(Qwen35Experts):
    axes = "turns"
