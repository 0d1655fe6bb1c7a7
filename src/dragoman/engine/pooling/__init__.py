"""The engine of models that embed or score texts: batches by tokens, whoever's texts they are of."""
