"""The blocks of the key/value cache: their holders, and the order of eviction."""
