"""`dragoman bench`: how fast a server answers."""
