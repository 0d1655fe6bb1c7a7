"""Records reference logits with transformers in float32, for tests/models/test_parity.py.

Run: pip install torch transformers, then `python scripts/record_reference_logits.py` from the repository's root. Writes
tests/models/reference/<name>.npz: `token_ids` i64 [T] and `logits` f32 [T, columns], where `columns` are the
vocabulary entries listed in `columns` (all of them for the random shapes, every 16th for the demo model, to stay small).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests.support.random_checkpoint import SHAPES, write_checkpoint  # noqa: E402

OUTPUT = ROOT / "tests" / "models" / "reference"
NUM_TOKENS = 150  # several 32-token blocks and a rest


def record(name: str, directory: Path, column_step: int) -> None:
    """Write the reference of one model directory."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    vocab_size = model.config.vocab_size
    token_ids = np.random.RandomState(7).randint(0, vocab_size, size=NUM_TOKENS)
    with torch.no_grad():
        logits = model(torch.from_numpy(token_ids)[None]).logits[0].numpy()
    columns = np.arange(0, vocab_size, column_step)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        OUTPUT / f"{name}.npz", token_ids=token_ids, columns=columns, logits=logits[:, columns].astype(np.float32)
    )


def main() -> None:
    """Record the random shapes and the bundled demo model."""
    for shape in SHAPES:
        with tempfile.TemporaryDirectory() as directory:
            record(shape.name, write_checkpoint(shape, Path(directory)), column_step=1)
    record("demo", ROOT / "src" / "dragoman" / "demo_model", column_step=16)


if __name__ == "__main__":
    main()
