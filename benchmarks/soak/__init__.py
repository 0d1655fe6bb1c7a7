"""A soak: everything at once for a while, and whether all of it adds up afterwards (see `__main__`)."""
