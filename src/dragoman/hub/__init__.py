"""Models of a Hugging Face hub: their names, their files in the local cache, and bringing them there."""
