"""AWS Large Model Inference."""
