"""The forward pass: a batch as flat arrays, and the runner that computes its logits."""
