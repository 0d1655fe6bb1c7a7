"""The request bodies of Text Generation Inference's routes as schemas.

Does: describe. Does not: answer. Used when the document is built.
"""

from __future__ import annotations

from dragoman.server.apis.lmi_wire.describe import form, parameters
from dragoman.server.apis.lmi_wire.parameters.table import TGI, rows_for
from dragoman.server.describe.json_schema import (
    LENIENT_BOOLEAN,
    NON_EMPTY_TEXT,
    Schema,
    an_object,
    described,
    nullable,
    ref,
)
from dragoman.types import Limits


def schemas(limits: Limits) -> dict[str, Schema]:
    """The components of its bodies."""
    return {
        **parameters("TgiParameters", rows_for(TGI), TGI, "", limits),
        "TgiRequest": an_object(
            {"inputs": described(NON_EMPTY_TEXT, "the prompt")},
            {
                "parameters": nullable(ref("TgiParameters")),
                "stream": described(nullable(LENIENT_BOOLEAN), "on `/` only: stream the answer", False),
            },
        ),
        "LmiForm": form(),
    }
