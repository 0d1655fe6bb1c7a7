"""Answers files of requests without a server: OpenAI's batch format, one line per request and answer."""
