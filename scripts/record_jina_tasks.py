"""Records what Jina Embeddings 3 computes for each of its tasks, for the case jina_tasks of tests/models/pooling.

The code of the release is in a repository of its own, which is never run here; this is a plain one in torch by its paper
(arXiv:2409.10173). Names of tensors and keys of config.json are those of the release as its users and llama.cpp's converter
have them; nobody has compared this with the released weights. An adapter of a task changes the tables of embeddings and
every product: W + B A * alpha / rank, or W + A B * alpha / rank for tables; a text of a task has its instruction before it.

Run: `python scripts/record_jina_tasks.py` from the repository's root, where torch, numpy, safetensors and tokenizers are.
Writes jina_tasks.json, with the tensors' shapes, and jina_tasks.npz: `embeddings` f32 [texts, dimensions] without a task and
`embeddings_<task>` for each.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
from tests.support.family_checkpoint import case_tensors  # noqa: E402
from tests.support.pooling_checkpoint import CASES, Case, case_texts, case_tokenizer, vocabulary  # noqa: E402

NAME = "jina_tasks"
SIZE, HEADS, LAYERS, INNER, RANK, THETA = 48, 3, 2, 80, 4, 20_000.0
INSTRUCTIONS = {
    "retrieval.query": "find what this asks for: ",
    "retrieval.passage": "what this is about: ",
    "separation": "",
    "classification": "",
    "text-matching": "",
}


def made() -> Case:
    """The case: configuration, files, shapes of tensors."""
    tasks = list(INSTRUCTIONS)
    config: dict[str, Any] = {
        "architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta", "attention_probs_dropout_prob": 0.1,
        "auto_map": {"AutoModel": "jinaai/xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA"},
        "bos_token_id": 0, "classifier_dropout": None, "emb_pooler": "mean", "eos_token_id": 2, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1, "hidden_size": SIZE, "initializer_range": 0.02, "intermediate_size": INNER,
        "layer_norm_eps": 1e-05, "load_trained_adapters": True, "lora_adaptations": tasks, "lora_alpha": 2,
        "lora_dropout_p": 0.0, "lora_main_params_trainable": False, "lora_rank": RANK, "matryoshka_dimensions": [16, 32, 48],
        "max_position_embeddings": 160, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "output_past": True,
        "pad_token_id": 1, "position_embedding_type": "rotary", "rotary_emb_base": THETA, "task_instructions": INSTRUCTIONS,
        "torch_dtype": "float32", "truncate_dim": None, "type_vocab_size": 1, "use_cache": True, "use_flash_attn": True,
        "use_reg_tokens": False, "vocab_size": 0,
    }  # fmt: skip
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    pooling = {"word_embedding_dimension": SIZE, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    case: Case = {
        "config": config,
        "tokenizer": "roberta",
        "texts": ["", "water", "What is the number of people?", 17, 60],
        "prompts": tasks,
        "files": {
            "modules.json": [
                {"idx": index, "name": str(index), "path": path, "type": f"custom_st.{kind}"}
                for index, (kind, path) in enumerate(kinds)
            ],
            "1_Pooling/config.json": pooling,
            "config_sentence_transformers.json": {"prompts": INSTRUCTIONS, "default_prompt_name": None},
        },
        "values": {
            "*norm?.weight": {"center": 1.0, "std": 0.2},
            "*emb_ln.weight": {"center": 1.0, "std": 0.2},
            "*lora_?": {"std": 0.25},
            "*embeddings*": {"std": 1.0},
            "*original": {"std": 0.25},
        },
    }
    config["vocab_size"] = vocabulary(case)
    case["tensors"] = shapes(config["vocab_size"])
    return case


def shapes(vocab_size: int) -> dict[str, list[int]]:
    """Names and shapes of the tensors."""
    found: dict[str, list[int]] = {}

    def adapted(module: str, rows: int, columns: int, *, is_table: bool = False) -> None:
        at = f"roberta.{module}.parametrizations.weight"
        found[f"{at}.original"] = [rows, columns]
        sizes = ([rows, RANK], [RANK, columns]) if is_table else ([RANK, columns], [rows, RANK])
        for part, shape in zip("AB", sizes, strict=True):
            found[f"{at}.0.lora_{part}"] = [len(INSTRUCTIONS), *shape]
        if not is_table:
            found[f"roberta.{module}.bias"] = [rows]

    adapted("embeddings.word_embeddings", vocab_size, SIZE, is_table=True)
    adapted("embeddings.token_type_embeddings", 1, SIZE, is_table=True)
    adapted("pooler.dense", SIZE, SIZE)
    norms = ["emb_ln"]
    for index in range(LAYERS):
        at = f"encoder.layers.{index}"
        adapted(f"{at}.mixer.Wqkv", 3 * SIZE, SIZE)
        adapted(f"{at}.mixer.out_proj", SIZE, SIZE)
        adapted(f"{at}.mlp.fc1", INNER, SIZE)
        adapted(f"{at}.mlp.fc2", SIZE, INNER)
        norms += [f"{at}.norm1", f"{at}.norm2"]
    for norm in norms:
        found |= {f"roberta.{norm}.{part}": [SIZE] for part in ("weight", "bias")}
    return dict(sorted(found.items()))


class Network:
    """The network with one task's adapters, or none."""

    def __init__(self, case: Case, task: int | None) -> None:
        tensors = case_tensors(NAME, case)
        self._tensors = {name: torch.tensor(np.asarray(value, dtype=np.float64)) for name, value in tensors.items()}
        self._scale, self._task = case["config"]["lora_alpha"] / RANK, task
        self._epsilon = case["config"]["layer_norm_eps"]

    def __call__(self, token_ids: list[int]) -> Any:
        """The text's vector, of length 1."""
        x = self._weight("embeddings.word_embeddings")[token_ids] + self._weight("embeddings.token_type_embeddings")[0]
        x = self._norm(x, "emb_ln")
        for index in range(LAYERS):
            at = f"encoder.layers.{index}"
            x = self._norm(x + self._attention(x, f"{at}.mixer"), f"{at}.norm1")
            raised = torch.nn.functional.gelu(self._product(x, f"{at}.mlp.fc1"))
            x = self._norm(x + self._product(raised, f"{at}.mlp.fc2"), f"{at}.norm2")
        mean = x.mean(dim=0)
        return (mean / mean.norm()).numpy()

    def _weight(self, module: str) -> Any:
        at = f"roberta.{module}.parametrizations.weight"
        weight = self._tensors[f"{at}.original"]
        if self._task is None:
            return weight
        down, up = (self._tensors[f"{at}.0.lora_{part}"][self._task] for part in "AB")
        return weight + self._scale * (down @ up if "embeddings" in module else up @ down)

    def _product(self, x: Any, module: str) -> Any:
        return x @ self._weight(module).T + self._tensors[f"roberta.{module}.bias"]

    def _norm(self, x: Any, name: str) -> Any:
        parts = (self._tensors[f"roberta.{name}.{part}"] for part in ("weight", "bias"))
        return torch.nn.functional.layer_norm(x, (SIZE,), *parts, self._epsilon)

    def _attention(self, x: Any, module: str) -> Any:
        length, head = len(x), SIZE // HEADS
        q, k, v = self._product(x, f"{module}.Wqkv").reshape(length, 3, HEADS, head).permute(1, 2, 0, 3)
        frequencies = THETA ** (-torch.arange(0, head, 2, dtype=torch.float64) / head)
        angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
        cos, sin = (torch.cat([part, part], dim=-1) for part in (angles.cos(), angles.sin()))

        def turned(y: Any) -> Any:
            first, second = y.chunk(2, dim=-1)
            return y * cos + torch.cat([-second, first], dim=-1) * sin

        scores = turned(q) @ turned(k).transpose(-1, -2) / head**0.5
        attended = (scores.softmax(dim=-1) @ v).permute(1, 0, 2).reshape(length, SIZE)
        return self._product(attended, f"{module}.out_proj")


def main() -> None:
    """Record the case."""
    case = made()
    (CASES / f"{NAME}.json").write_text(json.dumps(case, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    tokenizer: Tokenizer = case_tokenizer(case)[0]
    arrays = {}
    for index, (task, instruction) in enumerate([("", ""), *INSTRUCTIONS.items()]):
        network = Network(case, index - 1 if task else None)
        rows = [network(tokenizer.encode(instruction + text).ids) for text in case_texts(case)]
        arrays[f"embeddings_{task}" if task else "embeddings"] = np.stack(rows).astype(np.float32)
    np.savez_compressed(CASES / f"{NAME}.npz", allow_pickle=False, **arrays)
    print({name: list(value.shape) for name, value in arrays.items()})


if __name__ == "__main__":
    main()
