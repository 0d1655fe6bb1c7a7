"""What `parameters` may hold."""
