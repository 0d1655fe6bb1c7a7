"""The families of networks over whole texts, and which of them a config.json means.

A new family is a file here and a line in `architectures.ENCODERS`; decoders are those of `models.families`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from dragoman.models.architectures import ENCODERS, FAMILIES
from dragoman.models.config import Config, ModelError, shown
from dragoman.models.families import read_model
from dragoman.models.pooling.families.base import TextFamily
from dragoman.models.sources.quantised import QUANTISATION_KEYS

TASKS, _WITH_TASKS = "lora_adaptations", "bert.JinaTasks"
"""The key of XLM-RoBERTa's config.json that tells Jina Embeddings 3 as it was released, and what reads that."""
_EURO = "EuroBert"
MODEL, MASKED, SCORER, GENERATOR = "Model", "ForMaskedLM", "ForSequenceClassification", "ForCausalLM"
_BODIES = {"Gemma3Text": "Gemma3", _EURO: "Llama"}
"""Decoders whose bodies alone have another name; EuroBERT has Llama's layers, read in both directions."""
COLBERT = "HF_ColBERT"
"""ColBERT's own name of BERT with a product behind it."""
_EUROS = ("mask_token_id", "classifier_pooling", "clf_pooling", "pretraining_tp")
_WITHOUT_SCORES = ("JinaEmbeddingsV3", "MPNet")  # no reranker has these architectures
_OURS = (
    "is_causal", "classifier_from_token", "is_original_qwen3_reranker", "sentence_transformers", "num_labels",
    "sbert_ce_default_activation_function", "function_to_apply",
)  # fmt: skip
"""Keys of config.json for the recipe."""


def architecture_of(raw_config: Mapping[str, Any]) -> str:
    names = raw_config.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


def parts_of(architecture: str) -> tuple[str, str] | None:
    """An architecture's family and head, ("Bert", "ForSequenceClassification") say; None if it is not known."""
    if architecture == COLBERT:
        return "Bert", MODEL
    for head in (MASKED, SCORER, GENERATOR, MODEL):
        if architecture.endswith(head):
            name = architecture.removesuffix(head)
            if name == _EURO and head in (SCORER, GENERATOR):
                return None  # its head differs
            name = _BODIES.get(name, name)
            return (name, head) if name in ENCODERS or f"{name}{GENERATOR}" in FAMILIES else None
    return None


def is_encoder(architecture: str) -> bool:
    parts = parts_of(architecture)
    is_euro = architecture.startswith(_EURO)
    return parts is not None and (parts[0] in ENCODERS or is_euro) and parts[1] != GENERATOR


def read_text_model(raw_config: dict[str, Any], *, scores: bool, answer_ids: tuple[int, ...] = ()) -> TextFamily:
    """The network of a config.json. `scores`: with the head that scores; `answer_ids`: see `Decoder`. Raises: ModelError."""
    architecture = architecture_of(raw_config)
    parts = parts_of(architecture)
    if parts is None:
        heads = ", ".join(f"{name}Model" for name in ENCODERS)
        raise ModelError(
            f"architecture {shown(architecture)} is not supported for embedding or scoring; supported: {heads}, and "
            "decoders that generate text"
        )
    name, head = parts
    if scores and not answer_ids and (head != SCORER or name in _WITHOUT_SCORES):
        raise ModelError(f"architecture {architecture} has no scoring head; option task=embed serves its embeddings")
    used = {key: value for key, value in raw_config.items() if key not in _OURS}
    if name not in ENCODERS:
        from dragoman.models.pooling.families.decoders import Decoder

        is_euro = architecture.startswith(_EURO)
        if is_euro:
            used = {key: value for key, value in used.items() if key not in _EUROS}
        sees_behind = name == "Gemma3" and used.get("use_bidirectional_attention") is True
        if sees_behind:
            del used["use_bidirectional_attention"]
        family = read_model({**used, "architectures": [f"{name}{GENERATOR}"]})
        is_causal = raw_config.get("is_causal") is not False and not is_euro
        return Decoder(family, scores=scores, is_causal=is_causal, sees_behind=sees_behind, answer_ids=answer_ids)
    module, _, kind = (_WITH_TASKS if name == "XLMRoberta" and TASKS in used else ENCODERS[name]).partition(".")
    config = Config(used)
    config.skip(*QUANTISATION_KEYS)
    model: TextFamily = getattr(import_module(f"{__name__}.{module}"), kind)(config, scores=scores)
    config.refuse_unread()
    return model
