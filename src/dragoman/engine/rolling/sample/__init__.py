"""From logits to tokens: processors, filters, the draw, and the sampler's state of a sequence."""
