"""OpenVINO Model Server's words for embeddings and reranking.

Sources: OVMS, embeddings and rerank endpoints; OVMS HEAD, embeddings_api.cpp and rerank_utils.cpp (texts).
"""

from __future__ import annotations

from dataclasses import replace

from dragoman.server.apis.ovms_wire.profile import V3

V3_EMBEDDINGS = replace(
    V3,
    texts={
        **V3.texts,
        "input.missing": "input field is required",
        "input.type": "input should be string or array of strings",
        "encoding_format.type": "encoding_format should be string",
        "encoding_format.value": "encoding_format should either base64 or float",
    },
)

V3_RERANK = replace(
    V3,
    texts={
        **V3.texts,
        "query.missing": "query field is missing in request",
        "query.type": "query is not a string",
        "documents.missing": "documents field is missing in request",
        "documents.type": "documents is not an array",
        "documents[].type": "documents array element is neither string nor object",
        "documents[].text.missing": "document text field is missing",
        "documents[].text.type": "document text field have to be string",
        "top_n.type": "top_n accepts integer values",
        "return_documents.type": "return_documents accepts boolean values",
        "rank_fields.type": "rank_fields is not an array",
        "max_chunks_per_doc.type": "max_chunks_per_doc accepts integer values",
    },
)
