"""The tensors of GGUF files under the names and in the shapes that Hugging Face checkpoints have."""
