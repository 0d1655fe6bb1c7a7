"""Says what a machine is to this server: what would run on it and how fast, what is wrong with it, and how to mend that."""
