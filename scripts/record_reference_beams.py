"""Records beam-search results with transformers in float32, for tests/engine/beams/test_beam_reference.py.

Run: pip install torch "transformers==4.49.0" ml_dtypes (the last series with group beam search built in), then
`python scripts/record_reference_beams.py` from the repository's root. Writes tests/engine/beams/reference/beams.json: a list
of cases, each with its parameters and the returned sequences (generated tokens only, end-of-sequence included) and
their scores, best first. The model is a random one, see tests/support/random_checkpoint.py; every tenth token is an
end-of-sequence token there, so that hypotheses end at many lengths.
"""

from __future__ import annotations

import json
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests.support.random_checkpoint import BEAMS, write_checkpoint  # noqa: E402

OUTPUT = ROOT / "tests" / "engine" / "beams" / "reference" / "beams.json"
EOS_TOKEN_IDS = list(range(5, BEAMS.vocab_size, 10))
MAX_NEW_TOKENS = 14


def cases() -> list[dict[str, Any]]:
    """Plain beam search over widths and rules, then diverse beam search over groups and penalties."""
    plain = [
        {"num_beams": width, "n": min(width, 3), "length_penalty": penalty, "early_stopping": early}
        for width, penalty, early in product((2, 3, 5), (0.0, 1.0, 2.0, -1.0), (True, False, "never"))
    ]
    diverse = [
        {
            "num_beams": width,
            "num_beam_groups": groups,
            "diversity_penalty": diversity,
            "n": width,
            "length_penalty": 1.0,
        }
        for width, groups, diversity in ((4, 2, 0.5), (4, 4, 1.0), (6, 3, 2.0), (6, 2, 0.1))
    ]
    return plain + diverse


def record(model: Any, case: dict[str, Any], prompt: list[int]) -> dict[str, Any]:
    """The case with the reference's sequences and scores."""
    options: dict[str, Any] = {}
    if case.get("num_beam_groups", 1) > 1:
        options = {"num_beam_groups": case["num_beam_groups"], "diversity_penalty": case["diversity_penalty"]}
    out = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        num_beams=case["num_beams"],
        num_return_sequences=case["n"],
        length_penalty=case["length_penalty"],
        early_stopping=case.get("early_stopping", False),
        max_new_tokens=MAX_NEW_TOKENS,
        eos_token_id=EOS_TOKEN_IDS,
        pad_token_id=BEAMS.vocab_size - 1,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    sequences = []
    for row in out.sequences[:, len(prompt) :].tolist():
        end = next((i + 1 for i, token_id in enumerate(row) if token_id in EOS_TOKEN_IDS), len(row))
        sequences.append(row[:end])
    return case | {"prompt": prompt, "sequences": sequences, "scores": out.sequences_scores.tolist()}


def main() -> None:
    """Record every case on one of four prompts."""
    stream = np.random.RandomState(11)
    prompts = [stream.randint(0, BEAMS.vocab_size, size=length).tolist() for length in (3, 9, 33, 64)]
    with tempfile.TemporaryDirectory() as directory:
        path = write_checkpoint(BEAMS, Path(directory))
        model = AutoModelForCausalLM.from_pretrained(path, torch_dtype=torch.float32).eval()
        recorded = [record(model, case, prompts[i % len(prompts)]) for i, case in enumerate(cases())]
    facts = {"eos_token_ids": EOS_TOKEN_IDS, "max_new_tokens": MAX_NEW_TOKENS, "cases": recorded}
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(facts) + "\n")


if __name__ == "__main__":
    main()
