"""Measures what retrieval loses with each type of weights: how a released model ranks 1,000 sentences of docs/, against f32.

Run: `python scripts/measure_embedding_types.py [minilm|mpnet]`. Each sentence is a query for the others. Told are the rank
correlation (Spearman's, mean and least), how many of the first ten stay among them, and one minus the cosine at most.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from fetch_released_models import fetch  # noqa: E402

from dragoman.models.pooling.model import load_pooler  # noqa: E402
from dragoman.models.pooling.recipe import read_recipe  # noqa: E402
from dragoman.models.profile import ModelOptions  # noqa: E402
from dragoman.models.storage.constants import WeightType  # noqa: E402
from dragoman.tokenizer.hf_tokenizer import load_tokenizer  # noqa: E402
from dragoman.types import PooledText  # noqa: E402

COUNT, AT_ONCE = 1000, 20

Array = np.ndarray[Any, Any]


def sentences() -> list[str]:
    """Different ones of 40 to 200 characters, from all pages alike."""
    text = "\n\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md")))
    text = re.sub(r"[`*|#]", " ", re.sub(r"```.*?```", " ", text, flags=re.DOTALL))
    found = dict.fromkeys(" ".join(part.split()) for part in re.split(r"(?<=[.!?:])\s+|\n\n", text))
    fitting = [sentence for sentence in found if 40 <= len(sentence) <= 200]
    return fitting[:: max(len(fitting) // COUNT, 1)][:COUNT]


def vectors(directory: Path, kind: WeightType, token_ids: list[tuple[int, ...]]) -> Array:
    """Of length one."""
    model = load_pooler(directory, read_recipe(directory), ModelOptions(kind))
    texts = [PooledText(ids) for ids in token_ids]
    rows = [model.run(texts[start : start + AT_ONCE]) for start in range(0, len(texts), AT_ONCE)]
    found: Array = np.concatenate([np.asarray(row) for row in rows])
    return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True))


def ranks(rows: Array) -> Array:
    """Of each row's numbers, around zero: of all sentences but the query itself."""
    count = len(rows)
    others = (rows @ rows.T)[~np.eye(count, dtype=bool)].reshape(count, count - 1)
    return np.asarray(others.argsort(axis=1).argsort(axis=1) - (count - 2) / 2, dtype=np.float64)


def main(name: str) -> None:
    """Tell each type's numbers."""
    directory = fetch(name)
    tokenizer = load_tokenizer(directory)
    token_ids = [tuple(tokenizer.encode(sentence)) for sentence in sentences()]
    exact = vectors(directory, "f32", token_ids)
    wanted = ranks(exact)
    last = wanted.max() - 10
    for kind in get_args(WeightType):
        rows = vectors(directory, kind, token_ids)
        found = ranks(rows)
        correlation = (wanted * found).sum(1) / np.sqrt((wanted**2).sum(1) * (found**2).sum(1))
        kept = ((wanted > last) & (found > last)).sum(1).mean() / 10
        angle = 1 - (rows * exact).sum(1).min()
        print(
            f"{kind}: rank correlation {correlation.mean():.4f}, least {correlation.min():.4f}; {kept:.1%}; {angle:.1e}"
        )


if __name__ == "__main__":
    main(*sys.argv[1:] or ["minilm"])
