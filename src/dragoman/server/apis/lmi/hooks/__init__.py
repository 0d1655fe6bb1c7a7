"""An operator's own code: loading it, the objects that it sees, the threads it runs on. Knows nothing of the server."""
