"""Reranking and scoring as Cohere, Jina, OpenVINO Model Server and vLLM have it."""
