"""GGUF files as texts: what their metadata says, in the words of the files that a Hugging Face directory has."""
