"""The wire format of reranking, as Cohere, Jina and OpenVINO Model Server have it, and of vLLM's scores."""
