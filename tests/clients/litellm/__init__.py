"""LiteLLM, which needs an older openai than the others and so an environment of its own."""
