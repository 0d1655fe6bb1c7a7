"""What compression costs, as numbers: how well a model foretells a text, and how far it is from another model."""
