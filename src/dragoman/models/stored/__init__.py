"""The weights of a model as its files store them, of either kind: opened by path, under the names of a checkpoint."""
