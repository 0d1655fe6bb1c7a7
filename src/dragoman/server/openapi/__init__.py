"""The OpenAPI document of the running server."""

from dragoman.server.openapi.document import openapi_document

__all__ = ["openapi_document"]
