"""Tensors as a model's files hold them, and the forms in which they are stored."""
