"""Anthropic's Messages API: conversations, counting their tokens, the model list as its clients read it."""
