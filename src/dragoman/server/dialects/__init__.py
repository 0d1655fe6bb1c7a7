"""One package per client API. A dialect renames; it does not implement."""
