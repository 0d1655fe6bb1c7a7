"""What long contexts and many streams cost: see `__main__`."""
