"""Text Embeddings Inference."""
