"""What would be done with a call, told without doing it."""
