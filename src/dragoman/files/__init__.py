"""Files of models and of earlier starts: whose they are, which are unfinished, which are pickles, what metadata says."""
