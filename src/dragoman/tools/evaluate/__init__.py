"""Measures the cost of compression: how well a model predicts a text, and how far it is from another model."""
