"""Pictures in the rolling engine: who embeds them, and where they stand in a prompt."""
