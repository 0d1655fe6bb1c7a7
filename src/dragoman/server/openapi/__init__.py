"""The OpenAPI document of the running server and the page to try its routes on."""

from dragoman.server.openapi.document import openapi_document
from dragoman.server.openapi.facts import ApiFacts
from dragoman.server.openapi.routes import documentation_routes

__all__ = ["ApiFacts", "documentation_routes", "openapi_document"]
