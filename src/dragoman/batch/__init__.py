"""Answers files of requests without a server between: OpenAI's batch format, a line for each request and each answer."""
