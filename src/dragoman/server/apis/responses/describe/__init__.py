"""How Responses is described."""
