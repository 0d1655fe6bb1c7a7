"""`dragoman warm`: computes beginnings of prompts in advance."""
