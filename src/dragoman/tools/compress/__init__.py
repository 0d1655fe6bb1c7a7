"""From a checkpoint to one with weights of few bits, by what goes into its matrices when it reads a text."""
