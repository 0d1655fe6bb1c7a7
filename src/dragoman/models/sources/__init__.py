"""Where a model's tensors come from, and how each of them is stored there."""
