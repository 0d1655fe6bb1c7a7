"""`dragoman explain`: what would be done with a call."""
