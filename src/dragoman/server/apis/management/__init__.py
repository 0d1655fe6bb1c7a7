"""Health checks, metrics, and what the server says of itself."""
