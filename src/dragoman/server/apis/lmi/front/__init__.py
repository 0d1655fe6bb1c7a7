"""LMI's front end: the steps before a call reaches a model."""
