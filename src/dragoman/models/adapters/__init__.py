"""Low-rank adapters (LoRA, arXiv:2106.09685): their files, their places in a graph, and merging them into weights."""
