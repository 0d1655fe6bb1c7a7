"""Schemas of what LMI's routes carry."""
