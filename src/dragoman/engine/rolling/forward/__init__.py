"""The forward pass: packing a batch into flat arrays, and the runner that computes its logits."""
