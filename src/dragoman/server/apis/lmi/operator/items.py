"""Makes the `Input` that an operator's code sees of an HTTP call. On the event loop and on hook threads.

Source: LMI's front end, v0.31.
"""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.errors import InvalidPayload
from dragoman.server.api import HttpCall
from dragoman.server.apis.lmi.hooks.inputs import Input
from dragoman.server.apis.lmi_wire.body import FORM, form_fields
from dragoman.server.http.multipart import MULTIPART, read_parts


def make_input(http: HttpCall) -> Input:
    """A call as a model.py sees it: header fields and query as properties; the body as `data`, or a form's parts."""
    properties = {**http.query, **http.headers}
    if http.media_type != MULTIPART:
        return Input(properties, [("data", http.body)])
    try:
        return Input(properties, [(part.name, part.content) for part in read_parts(http)])
    except InvalidPayload:  # whether it is wrong is for the operator's code to say
        return Input(properties, [("data", http.body)])


def handler_input(http: HttpCall, properties: Mapping[str, str]) -> Input:
    """The same as a handler sees it: LMI shows it a form's fields and the query as pieces of content, too.

    `properties` stand behind those of the call.
    """
    item = make_input(http)
    fields: list[tuple[str, str]] = list(http.query.items())
    if http.media_type == FORM and not http.body.lstrip().startswith(b"{"):
        fields = [*form_fields(http.body, keep_blank_values=True), *fields]
    content = [*item.content, *((name, value.encode()) for name, value in fields if not item.contains_key(name))]
    return Input({**properties, **item.properties}, content)
