"""Records what llama.cpp answers on the GGUF files of `make test-models`, and how far it is from exact arithmetic.

Run: pip install torch==2.13.0 transformers==5.24.0 accelerate gguf numpy xllamacpp==2026.10.11549 into a virtual environment
of their own, and start `python scripts/record_llama_cpp.py [MODEL ...]` with it, from the repository's root. xllamacpp is
llama.cpp's server as a compiled wheel for AVX2; the last number of its version is llama.cpp's build. All its settings are
the defaults of llama-server but the context and the number of slots. Every position is a prompt, read in one batch.

Writes for each model tests/released/<model>_llama_cpp.json: tokens of all texts and chats, the logarithm of the
probability of each token of the scored texts but the first, and the divergence, in nats, from transformers' float32 on
the file's values. Writes tests/released/<model>_exact.npz, too: for each of those positions the ids and logarithms of
transformers' likeliest tokens, and the logarithm of what is left for all others. The divergence is over these classes;
over whole vocabularies it is a fifth larger.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
import xllamacpp

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / "scripts")]
from fetch_released_models import MODELS, fetch  # noqa: E402

from tests.released.divergences import FOLDER, NUM_LIKELIEST, Exact, divergences  # noqa: E402
from tests.released.texts import CHATS, NUM_SCORED, TEXTS  # noqa: E402

_ASKED = 4096
"""Tokens whose probabilities are asked for; where one is missing, all are."""


class LlamaCpp:
    """llama.cpp's server with one model."""

    def __init__(self, path: Path) -> None:
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(path)
        parameters.n_ctx, parameters.n_parallel, parameters.port = 512, 1, 0
        self._server = xllamacpp.Server(parameters)

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        with urllib.request.urlopen(
            urllib.request.Request(self._server.listening_address + path, data, headers)
        ) as found:
            return json.load(found)

    def tokens(self, text: str) -> list[int]:
        """As its completions and chats read a prompt."""
        body = {"content": text, "add_special": True, "parse_special": True}
        found: list[int] = self._ask("/tokenize", body)["tokens"]
        return found

    def chat(self, messages: list[dict[str, Any]]) -> list[int]:
        """The tokens of a chat, up to where the answer begins."""
        return self.tokens(self._ask("/apply-template", {"messages": messages})["prompt"])

    def logarithms(self, prompt: list[int], wanted: list[int]) -> list[float]:
        """The logarithms of the probabilities with which wanted tokens come next."""
        for count in (_ASKED, 10**6):
            body = {"prompt": prompt, "n_predict": 1, "n_probs": count, "temperature": 0, "cache_prompt": False}
            answer = self._ask("/completion", body)
            if answer["tokens_evaluated"] != len(prompt):
                raise SystemExit(f"llama.cpp read {answer['tokens_evaluated']} tokens of {len(prompt)}")
            likeliest = answer["completion_probabilities"][0]["top_logprobs"]
            found = {entry["id"]: float(entry["logprob"]) for entry in likeliest}
            if all(token in found for token in wanted):
                break
        return [found[token] for token in wanted]


def exact(directory: Path, texts: list[list[int]]) -> Exact:
    """What transformers computes in float32, after each token of the texts but the last."""
    source = {"pretrained_model_name_or_path": directory, "gguf_file": "model.gguf"}
    model = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).eval()
    ids, logs = [], []
    for token_ids in texts:
        with torch.no_grad():
            all_logs = model(input_ids=torch.tensor([token_ids])).logits[0, :-1].double().log_softmax(-1)
        ordered = all_logs.sort(descending=True)
        rest = ordered.values[:, NUM_LIKELIEST:].logsumexp(-1, keepdim=True)
        ids.append(ordered.indices[:, :NUM_LIKELIEST].numpy())
        logs.append(torch.cat((ordered.values[:, :NUM_LIKELIEST], rest), 1).numpy())
    return Exact(np.concatenate(ids).astype(np.int32), np.concatenate(logs).astype(np.float32))


def record(name: str) -> dict[str, Any]:
    """What stands in the model's file; writes the exact distributions."""
    directory = fetch(name)
    has_template = "tokenizer.chat_template" in gguf.GGUFReader(directory / "model.gguf").fields
    peer = LlamaCpp(directory / "model.gguf")
    tokens = [peer.tokens(text) for text in TEXTS]
    reference = exact(directory, tokens[:NUM_SCORED])
    np.savez_compressed(FOLDER / f"{name}_exact.npz", allow_pickle=False, **reference._asdict())
    scores: list[list[float]] = []
    found: list[list[float]] = []
    for token_ids in tokens[:NUM_SCORED]:
        scores.append([])
        for count in range(1, len(token_ids)):
            wanted = [token_ids[count], *reference.ids[len(found)].tolist()]
            score, *likeliest = peer.logarithms(token_ids[:count], wanted)
            scores[-1].append(round(score, 4))
            found.append(likeliest)
    lost = divergences(reference, np.asarray(found))
    return {
        "llama_cpp": f"b{version('xllamacpp').rpartition('.')[2]}",
        "tokens": tokens,
        "chats": [peer.chat(chat) for chat in CHATS] if has_template else [],
        "scores": scores,
        "divergence": {key: float(f"{value:.4g}") for key, value in lost.items()},
    }


def main(names: list[str]) -> None:
    """Record the named models, or all in GGUF files."""
    for name in names or [name for name, model in MODELS.items() if model.weights.endswith(".gguf")]:
        lines = (f" {json.dumps(key)}: {json.dumps(value)}" for key, value in record(name).items())
        text = "{\n" + ",\n".join(lines) + "\n}\n"
        (FOLDER / f"{name}_llama_cpp.json").write_text(text, encoding="utf-8")
        print(name)


if __name__ == "__main__":
    main(sys.argv[1:])
