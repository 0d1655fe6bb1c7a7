"""Records what transformers computes on the released checkpoints of `make test-models`, in float32.

Run: pip install torch transformers accelerate gguf beside dragoman, then
`python scripts/record_released_models.py [MODEL ...]` from the repository's root. For a model that generates,
tests/released/<model>.json has for each scored text its tokens and the logarithm of each one's probability but the first;
for all texts their tokens; the same for the long one; and the tokens of the chats. For one that embeds,
tests/released/<model>.npz has the vectors, f32 [texts, dimensions].
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import normalizers

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "released"
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / "scripts")]
from fetch_released_models import MODELS, fetch  # noqa: E402

from tests.released.texts import CHATS, EMBEDDED, LONG, NUM_SCORED, TEXTS  # noqa: E402


def texts(directory: Path) -> dict[str, Any]:
    """Tokens, logarithms of probabilities, chats."""
    source = {"pretrained_model_name_or_path": directory, "gguf_file": "model.gguf"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
    if isinstance(tokenizer, transformers.Qwen2Tokenizer):  # reading a GGUF file drops what Qwen's tokenizer.json has
        tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    model = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).eval()
    tokens = [tokenizer(text)["input_ids"] for text in TEXTS]
    long_tokens = tokenizer(LONG)["input_ids"]
    scores = []
    for token_ids in [*tokens[:NUM_SCORED], long_tokens]:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([token_ids])).logits[0].log_softmax(-1)
        chosen = logits[:-1].gather(1, torch.tensor(token_ids[1:])[:, None])[:, 0]
        scores.append([round(score, 4) for score in chosen.tolist()])
    chats = []
    if tokenizer.chat_template:
        for chat in CHATS:
            text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            chats.append(tokenizer(text, add_special_tokens=False)["input_ids"])
    *scores, long_scores = scores
    long = {"long_tokens": long_tokens, "long_scores": long_scores}
    return {"tokens": tokens, "scores": scores, **long, "chats": chats}


def vectors(directory: Path) -> np.ndarray[Any, Any]:
    """Means over each text's tokens, of length one: what the model's card says."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
    found = []
    for text in EMBEDDED:
        with torch.no_grad():
            vector = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
        found.append((vector / vector.norm()).numpy())
    return np.stack(found).astype(np.float32)


def main(names: list[str]) -> None:
    """Record the named models, or all."""
    for name in names or list(MODELS):
        directory = fetch(name)
        if MODELS[name].weights.endswith(".gguf"):
            lines = (f" {json.dumps(key)}: {json.dumps(value)}" for key, value in texts(directory).items())
            (FOLDER / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        else:
            np.savez_compressed(FOLDER / f"{name}.npz", allow_pickle=False, vectors=vectors(directory))
        print(name)


if __name__ == "__main__":
    main(sys.argv[1:])
