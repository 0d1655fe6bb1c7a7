"""`dragoman eval`: a model's perplexity on a text."""
