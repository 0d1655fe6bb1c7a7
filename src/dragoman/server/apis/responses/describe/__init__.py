"""The description of Responses for OpenAPI."""
