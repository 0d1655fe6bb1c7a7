"""The engine of models that embed or score texts: batches by tokens, across requests."""
