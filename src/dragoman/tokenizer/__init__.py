"""Text on one side, token ids on the other: tokenizers, chat templates, detokenising, stop strings."""
