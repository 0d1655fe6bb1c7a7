"""What a second branch of guesses would bring: see `__main__`."""
