"""A replica and step costs that tests of plans have in common: small numbers, so that simulations take milliseconds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dragoman.engine.rolling.blocks.block_manager import CachePool
from dragoman.engine.rolling.config import RollingConfig
from dragoman.tools.plan.costs import StepCosts
from dragoman.tools.plan.simulate import Replica

BLOCK_SIZE = 8

COSTS = StepCosts(
    tokens=((1, 0.01), (8, 0.012), (64, 0.06), (128, 0.12)), row_s=1e-4, context_s=(1e-6,), pair_s=(1e-8,)
)
"""Ten milliseconds for a token, a hundred for a step of about a hundred."""


def replica(num_blocks: int = 200, **limits: Any) -> Replica:
    """A replica with so many blocks; `limits`: those of its engine that are not as here."""
    config = RollingConfig(**{"max_batch_tokens": 64, "max_num_seqs": 8, "max_slowdown": 2.5, **limits})
    return Replica(config, (CachePool(num_blocks),), (1024,), BLOCK_SIZE, max_model_len=512)


def free_of_pace(one: Replica) -> Replica:
    """The same, with prompts that are not paced."""
    return replace(one, limits=replace(one.limits, max_slowdown=0.0))
