"""JSON schemas: what a compiler of grammars can enforce of them."""
