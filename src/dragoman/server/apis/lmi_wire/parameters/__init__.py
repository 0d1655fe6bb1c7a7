"""The values that `parameters` may hold."""
