"""`dragoman batch`: a file of requests, answered."""
