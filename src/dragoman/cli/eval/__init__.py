"""`dragoman eval`: how well a model foretells a text."""
