"""Storage of weights in a graph: compressed, packed, and filled on all cores."""
