"""Records what sentence-transformers computes for the cases of tests/models/pooling, in float32.

Run: pip install torch sentence-transformers beside dragoman (not torchvision), then
`python scripts/record_embedding_references.py [CASE ...]` from the repository's root; without a name every case is
recorded.
For each case (tests/support/pooling_checkpoint.py explains them) it
    1. asks transformers how the family's files lay their tensors out and writes that into <case>.json,
    2. writes the directory and has sentence-transformers load it as it loads any model,
    3. records in <case>.npz `embeddings` f32 [texts, dimensions] and, for each of the case's prompts, `embeddings_<name>`;
       or `scores` f32 [pairs], and `logits` before the activation; `probabilities` and `logits` of labels; `words` of
       sparse ones; `query_<n>` and `document_<n>` of late interaction, and their `scores`.
The scores of a causal reranker are those of its model card: a question about each pair, the logits of yes and no.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import safe_open
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
from tests.support.pooling_checkpoint import (  # noqa: E402
    CASES,
    Array,
    Case,
    case_classified,
    case_names,
    case_pairs,
    case_texts,
    read_case,
    vocabulary,
    write_pooling_case,
)

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def record(name: str) -> None:
    """Record one case."""
    case = read_case(name)
    case["config"]["vocab_size"] = vocabulary(case)
    case["tensors"] = layout(case)
    (CASES / f"{name}.json").write_text(json.dumps(case, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    with tempfile.TemporaryDirectory() as root:
        directory = str(write_pooling_case(name, Path(root), case))
        arrays = recorder(case)(case, directory)
    np.savez_compressed(CASES / f"{name}.npz", allow_pickle=False, **arrays)
    told = {key: (list(value.shape), round(float(np.std(value)), 4)) for key, value in arrays.items()}
    print(f"{name}: {told}, {(CASES / f'{name}.npz').stat().st_size} bytes", flush=True)


def recorder(case: Case) -> Any:
    """What records the case."""
    if "pairs" in case:
        return scores
    if "classified" in case:
        return classes
    return {"words": words, "tokens": tokens}.get(case.get("records", ""), embeddings)


def words(case: Case, directory: str) -> dict[str, Array]:
    """The weights of all words that SparseEncoder gives for the texts."""
    model = SparseEncoder(directory, device="cpu", model_kwargs={"attn_implementation": "eager"})
    rows = [model.encode([text], convert_to_tensor=True)[0].to_dense().numpy() for text in case_texts(case)]
    return {"words": np.stack(rows)}


def tokens(case: Case, directory: str) -> dict[str, Array]:
    """The tokens' vectors that MultiVectorEncoder gives for the texts as queries and documents, and how similar they are."""
    model = MultiVectorEncoder(directory, device="cpu", model_kwargs={"attn_implementation": "eager"})
    texts = case_texts(case)
    queries = [np.asarray(model.encode_query([text])[0]) for text in texts]
    documents = [np.asarray(model.encode_document([text])[0]) for text in texts]
    arrays = {f"query_{index}": row for index, row in enumerate(queries)}
    arrays |= {f"document_{index}": row for index, row in enumerate(documents)}
    similar = [[np.asarray(model.similarity([q], [d])).item() for d in documents] for q in queries]
    return arrays | {"scores": np.array(similar, dtype=np.float32)}


def classes(case: Case, directory: str) -> dict[str, Array]:
    """What transformers' pipeline gives for the texts and pairs, one at a time."""
    model = transformers.pipeline("text-classification", model=directory, device="cpu", top_k=None)
    names = [case["config"]["id2label"][str(index)] for index in range(len(case["config"]["id2label"]))]
    arrays = {}
    for key, function in (("probabilities", None), ("logits", "none")):
        rows = []
        for text in case_classified(case):
            asked = {"text": text} if isinstance(text, str) else {"text": text[0], "text_pair": text[1]}
            told = model(asked, function_to_apply=function)
            by_name = {one["label"]: one["score"] for one in told}
            rows.append([by_name[name] for name in names])
        arrays[key] = np.array(rows, dtype=np.float32)
    return arrays


def layout(case: Case) -> dict[str, list[int]]:
    """Name and shape of each tensor as this family's files have them."""
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(case["config"]))
        config = transformers.AutoConfig.from_pretrained(directory)
        getattr(transformers, case["config"]["architectures"][0])(config).save_pretrained(directory)
        with safe_open(Path(directory) / "model.safetensors", framework="numpy") as file:
            return {name: list(file.get_slice(name).get_shape()) for name in sorted(file.keys())}


def embeddings(case: Case, directory: str) -> dict[str, Array]:
    """What SentenceTransformer gives for the texts, one at a time: nothing is padded."""
    model = SentenceTransformer(directory, device="cpu", model_kwargs={"attn_implementation": "eager"})
    texts = case_texts(case)
    arrays = {"embeddings": np.stack([model.encode([text], convert_to_numpy=True)[0] for text in texts])}
    for prompt in case.get("prompts", []):
        rows = [model.encode([text], prompt_name=prompt, convert_to_numpy=True)[0] for text in texts]
        arrays[f"embeddings_{prompt}"] = np.stack(rows)
    return arrays


def scores(case: Case, directory: str) -> dict[str, Array]:
    """What CrossEncoder gives for the pairs, one at a time."""
    pairs = case_pairs(case)
    if case["config"]["architectures"][0].endswith("ForCausalLM"):
        logits = np.array([answered(directory, *pair) for pair in pairs], dtype=np.float32)
        return {"logits": logits, "scores": 1 / (1 + np.exp(-logits))}
    model = CrossEncoder(directory, device="cpu", model_kwargs={"attn_implementation": "eager"})
    identity: Any = torch.nn.Identity()
    return {
        "logits": np.array([model.predict([pair], activation_fn=identity)[0] for pair in pairs]),
        "scores": np.array([model.predict([pair])[0] for pair in pairs]),
    }


def answered(directory: str, query: str, document: str) -> float:
    """By how much the logit of yes is larger than that of no."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager")
    body = f"<Instruct>: {INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"
    parts = [tokenizer.encode(text, add_special_tokens=False) for text in (BEFORE, body, AFTER)]
    with torch.no_grad():
        logits = model(torch.tensor([[one for part in parts for one in part]])).logits[0, -1]
    yes, no = (tokenizer.convert_tokens_to_ids(word) for word in ("yes", "no"))
    return float(logits[yes] - logits[no])


if __name__ == "__main__":
    for chosen in sys.argv[1:] or case_names():
        record(chosen)
