"""Pictures in the rolling engine: their embedding, and their places in a prompt."""
