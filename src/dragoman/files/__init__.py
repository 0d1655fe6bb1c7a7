"""Files of models and of earlier starts: their owners, unfinished ones, pickles, metadata."""
