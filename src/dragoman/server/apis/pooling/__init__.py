"""vLLM's pooling: classification, and vectors of texts or tokens."""
