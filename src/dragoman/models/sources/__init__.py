"""The sources of a model's tensors, and the forms in which they are stored."""
