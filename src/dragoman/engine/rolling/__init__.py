"""The rolling-batch engine: every step mixes prompts and decoding sequences of all requests in one forward pass."""
