"""The operation of embeddings in OpenAI's wire format, which several APIs have.

Does: put the description together. Does not: decide path, dialect or errors. Used when APIs are imported.
"""

from __future__ import annotations

from typing import Any

from dragoman.server.api import JSON_MEDIA_TYPE, model_of_body
from dragoman.server.apis.openai_wire.embeddings.schema import EmbeddingList
from dragoman.server.describe.answers import Answers, json_answer, merged
from dragoman.server.describe.components import IGNORED, QUESTION
from dragoman.server.describe.json_schema import ref
from dragoman.server.operations import PoolingOperation


def embeddings_operation(*, errors: Answers, body: str, **more: Any) -> PoolingOperation:
    """Embeddings. `body`: the component. `more`: what differs else."""
    return PoolingOperation(
        tag="Embeddings",
        answers=merged({200: json_answer(EmbeddingList, "the vectors", *IGNORED)}, errors),
        body={JSON_MEDIA_TYPE: ref(body)},
        example={"model": "default", "input": [QUESTION], "encoding_format": "float"},
        model=model_of_body,
        **more,
    )
