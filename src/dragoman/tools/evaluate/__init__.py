"""Measures the cost of compression: a model's perplexity on a text, and its distance from another model."""
