"""Embeddings in OpenAI's wire format."""
