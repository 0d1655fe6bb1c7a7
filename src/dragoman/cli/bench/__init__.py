"""`dragoman bench`: measures a server's speed."""
