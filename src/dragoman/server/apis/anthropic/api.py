"""Anthropic's Messages API: nothing is served of it, but its clients are told so in words that they understand."""

from __future__ import annotations

from dragoman.server.apis.anthropic.errors import AnthropicErrors
from dragoman.server.operations import Api

_ERRORS = AnthropicErrors()

API = Api(name="anthropic", title="Anthropic", owns=("/v1/messages",), teller=lambda dialects: _ERRORS)
