"""Compresses a checkpoint to few bits per weight, calibrated by the inputs of its matrices on a text."""
