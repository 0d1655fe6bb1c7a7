"""`dragoman compress`: a checkpoint with weights of few bits."""
