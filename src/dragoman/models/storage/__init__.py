"""How weights lie in a graph: compressed, packed, and filled on all cores."""
