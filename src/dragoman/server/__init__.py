"""The HTTP half: dialects, the service that turns text requests into engine requests, and the ASGI application."""
