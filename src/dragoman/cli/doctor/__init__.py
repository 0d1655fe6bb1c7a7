"""`dragoman doctor`: what this machine is to the server, and what is wrong with it."""
