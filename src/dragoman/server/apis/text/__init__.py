"""The plain-text service."""
