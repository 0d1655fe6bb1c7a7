"""Models that make one vector or one score of a whole text: reading their directories, their graphs, running them."""
