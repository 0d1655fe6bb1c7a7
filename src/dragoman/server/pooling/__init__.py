"""Models that embed texts or score pairs of them: what APIs ask of them (`base`), and the service that answers."""

from dragoman.server.pooling.base import (
    Embeddings,
    EmbedRequest,
    PoolingFacts,
    PoolingKind,
    PoolingService,
    ScoreRequest,
    Scores,
    Truncation,
    embedder,
    opening,
    scorer,
)

__all__ = [
    "EmbedRequest",
    "Embeddings",
    "PoolingFacts",
    "PoolingKind",
    "PoolingService",
    "ScoreRequest",
    "Scores",
    "Truncation",
    "embedder",
    "opening",
    "scorer",
]
