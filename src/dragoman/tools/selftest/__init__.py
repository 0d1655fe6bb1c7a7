"""Whether a model computes on this machine as it should: the same whatever runs beside it, and as fast as memory lets it."""
