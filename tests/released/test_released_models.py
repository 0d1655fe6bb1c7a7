"""Released checkpoints answer as transformers computes them on the same files, alone and in a crowd, with every --dtype.

Run: `make test-models`, which fetches the checkpoints once (scripts/fetch_released_models.py). The numbers are
scripts/record_released_models.py's, in float32; LOSSES says how far each type may be from them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np
import pytest

from tests.released.texts import CHATS, EMBEDDED, NUM_SCORED, TEXTS
from tests.support.server_process import serve

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parents[1] / "scripts"))
from fetch_released_models import fetch  # noqa: E402

DTYPES = ("f32", "bf16", "f16", "int8", "int4")
SPEAKING = ("smollm2", "gemma3", "qwen25")
EMBEDDING = ("minilm", "mpnet")
LOSSES = {"f32": 0.002, "bf16": 0.1, "f16": 0.1, "int8": 0.2, "int4": 1.0}
"""The mean distance of logarithms of tokens' probabilities, over all texts."""
ANGLES = {"f32": 1e-5, "bf16": 2e-4, "f16": 2e-4, "int8": 0.006, "int4": 0.2}
"""One minus the cosine of two vectors, at most."""

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


@pytest.fixture(scope="module", params=[(name, dtype) for name in SPEAKING for dtype in DTYPES], ids="-".join)
def speaking(request: pytest.FixtureRequest) -> Iterator[tuple[str, str, httpx.Client]]:
    name, dtype = request.param
    with (
        serve(str(fetch(name) / "model.gguf"), "--dtype", dtype, "--max-model-len", "1536") as server,
        httpx.Client(base_url=server.base_url, timeout=300) as client,
    ):
        yield name, dtype, client


@pytest.fixture(scope="module", params=[(name, dtype) for name in EMBEDDING for dtype in DTYPES], ids="-".join)
def embedding(request: pytest.FixtureRequest) -> Iterator[tuple[str, str, httpx.Client]]:
    name, dtype = request.param
    with (
        serve(str(fetch(name)), "--dtype", dtype) as server,
        httpx.Client(base_url=server.base_url, timeout=300) as client,
    ):
        yield name, dtype, client


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found


def answer(client: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def in_a_crowd(ask: Callable[[_Item], _Answer], items: Sequence[_Item]) -> list[_Answer]:
    """All at once."""
    with ThreadPoolExecutor(len(items)) as pool:
        return list(pool.map(ask, items))


def scores_of(client: httpx.Client, token_ids: list[int]) -> list[float]:
    """The logarithm of the probability of each token but the first."""
    body = {"prompt": token_ids, "max_tokens": 1, "echo": True, "logprobs": 0, "temperature": 0}
    told = answer(client, "/v1/completions", body)["choices"][0]["logprobs"]["token_logprobs"]
    return [float(score) for score in told[1 : len(token_ids)]]


def test_tokens_of_texts_and_chats_are_the_references(speaking: tuple[str, str, httpx.Client]) -> None:
    name, _, client = speaking
    expected = recorded(name)
    for text, token_ids in zip(TEXTS, expected["tokens"], strict=True):
        assert answer(client, "/tokenize", {"prompt": text})["tokens"] == token_ids, text
    for chat, token_ids in zip(CHATS, expected["chats"], strict=False):
        assert answer(client, "/tokenize", {"messages": chat})["tokens"] == token_ids, chat


def test_probabilities_are_the_references_alone_and_in_a_crowd(
    speaking: tuple[str, str, httpx.Client], record_property: Callable[[str, object], None]
) -> None:
    name, dtype, client = speaking
    expected = recorded(name)
    prompts = [*expected["tokens"][:NUM_SCORED], expected["long_tokens"]]
    alone = [scores_of(client, token_ids) for token_ids in prompts]
    crowd = in_a_crowd(lambda token_ids: scores_of(client, token_ids), prompts)
    wanted = np.concatenate([*expected["scores"], expected["long_scores"]])
    for kind, found in (("alone", alone), ("crowd", crowd)):
        loss = float(np.mean(np.abs(np.concatenate(found) - wanted)))
        record_property(f"{name}_{dtype}_{kind}", loss)
        assert loss < LOSSES[dtype], kind
    assert np.mean(np.abs(np.concatenate(alone) - np.concatenate(crowd))) < LOSSES[dtype] / 10


def test_vectors_are_the_references_alone_and_in_a_crowd(
    embedding: tuple[str, str, httpx.Client], record_property: Callable[[str, object], None]
) -> None:
    name, dtype, client = embedding
    wanted = np.load(FOLDER / f"{name}.npz")["vectors"]

    def vector(text: str) -> list[float]:
        found: list[float] = answer(client, "/v1/embeddings", {"input": text})["data"][0]["embedding"]
        return found

    for kind, found in (("alone", [vector(text) for text in EMBEDDED]), ("crowd", in_a_crowd(vector, EMBEDDED))):
        angle = float(np.max(1 - np.sum(np.asarray(found) * wanted, axis=1)))
        record_property(f"{name}_{dtype}_{kind}", angle)
        assert angle < ANGLES[dtype], kind
