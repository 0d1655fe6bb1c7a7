"""Reports on calls while they run and when they have ended: log lines, metrics, the list of running calls."""
