"""Clients in JavaScript: each script takes the base URL, and ends with another code than 0 if something fails."""
