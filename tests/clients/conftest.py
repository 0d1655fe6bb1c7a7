"""The servers that all these clients are run against.

One has the bundled demo model in f32, whose words are the same everywhere; the other has two tiny models, one that embeds
and one that scores, of which is known what sentence-transformers computes. The environments of the clients have no
dragoman, so its own Python writes these.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.server_process import serve, server_python

NAMES = ("demo", "understudy")
"""What the bundled demo model is called."""

CASES = {"embedder": "bert_mean", "scorer": "xlmr_reranker"}
"""The models and which checkpoint of tests/models/pooling each is."""

TEXTS = slice(1, 5)
"""Those of the recorded texts that the model takes whole."""


@dataclass(frozen=True)
class PoolingServer:
    """A server with the models `embedder` and `scorer`; `vectors` are what the first one makes of `texts`."""

    base_url: str
    texts: list[str]
    vectors: list[list[float]]
    known: Path
    """A file that says the same in JSON, for clients in other languages."""


@pytest.fixture(scope="session")
def base_url() -> Iterator[str]:
    """Where the server with the demo model listens."""
    with serve("--name", ",".join(NAMES), "--dtype", "f32") as running:
        yield running.base_url


@pytest.fixture(scope="session")
def pooling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolingServer]:
    """The server with the models that embed and score."""
    root = tmp_path_factory.mktemp("models")
    command = [server_python(), "-m", "tests.support.pooling_checkpoint", str(root), *CASES.values()]
    written = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout)
    models = ",".join(f"{name}={written[case]['directory']}" for name, case in CASES.items())
    embedder = written[CASES["embedder"]]
    texts, vectors = embedder["texts"][TEXTS], embedder["embeddings"][TEXTS]
    known = root / "known.json"
    known.write_text(json.dumps({"texts": texts, "vectors": vectors}), encoding="utf-8")
    with serve(environ={"SERVING_LOAD_MODELS": models, "OPTION_DTYPE": "f32"}) as running:
        yield PoolingServer(running.base_url, texts, vectors, known)
