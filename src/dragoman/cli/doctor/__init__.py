"""`dragoman doctor`: examines this machine for the server."""
