"""OpenAI's API, and the token routes of servers that speak it."""
