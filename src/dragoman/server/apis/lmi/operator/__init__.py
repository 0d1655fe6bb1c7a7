"""An operator's own code on the LMI routes: what stands between the server and `hooks`."""
