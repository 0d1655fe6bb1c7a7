"""From logits to tokens: processors, filters, the draw, and what is remembered about a sequence."""
