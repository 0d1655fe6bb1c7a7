"""`dragoman warm`: beginnings of prompts, computed before anybody asks."""
