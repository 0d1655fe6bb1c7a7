"""Models of a Hugging Face hub: their names, the local cache, and downloads."""
