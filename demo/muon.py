"""Muon in single precision: momentum, made orthogonal by Newton-Schulz steps, as the update of a matrix.

``torch.optim.Muon`` does the same with bfloat16 products, which processors without bfloat16 compute very slowly. Source:
Keller Jordan's note "Muon: An optimizer for hidden layers in neural networks" (2024), with the scale that Moonshot's
"Muon is Scalable for LLM Training" (2025) gives, so that AdamW's learning rates fit. Called by ``demo/train.py``; not
for embeddings, norms or other vectors.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5


def orthogonal(matrix: Tensor) -> Tensor:
    """The matrix ``[rows, columns]`` with all its singular values near 1."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    first, second, third = COEFFICIENTS
    for _ in range(STEPS):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=second, alpha=third), x, beta=first)
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Updates matrices; ``lr`` is on AdamW's scale, weight decay is decoupled."""

    def __init__(self, params: list[torch.nn.Parameter], lr: float, weight_decay: float, momentum: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """One update with the gradients at hand."""
        assert closure is None, "Muon takes its gradients as they are"
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                buffer = state.setdefault("momentum", torch.zeros_like(param))
                buffer.lerp_(param.grad, 1 - group["momentum"])
                update = orthogonal(param.grad.lerp(buffer, group["momentum"]))
                param.mul_(1 - group["lr"] * group["weight_decay"])
                param.add_(update, alpha=-group["lr"] * 0.2 * max(param.shape) ** 0.5)
