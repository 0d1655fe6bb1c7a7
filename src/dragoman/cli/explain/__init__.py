"""`dragoman explain`: explains a call without running it."""
