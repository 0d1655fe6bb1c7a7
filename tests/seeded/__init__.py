"""Faults put into the code on purpose, to see which test finds each."""
