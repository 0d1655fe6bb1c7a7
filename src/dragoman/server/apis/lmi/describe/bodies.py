"""The request bodies of LMI's routes as schemas.

Does: describe the bodies around the parameters. Does not: describe answers. Called when the document is built.
"""

from __future__ import annotations

from dragoman.server.apis.lmi.dialect import LmiOptions
from dragoman.server.apis.lmi_wire.describe import form, parameters
from dragoman.server.apis.lmi_wire.parameters.table import rows_for
from dragoman.server.describe.json_schema import (
    LENIENT_BOOLEAN,
    NON_EMPTY_TEXT,
    Schema,
    an_object,
    any_of,
    array,
    described,
    nullable,
    ref,
)


def request_bodies(options: LmiOptions) -> dict[str, Schema]:
    """The components of the bodies of LMI's routes."""
    rows = rows_for(options.profile, with_tgi_names=options.tgi_compat)
    return {
        **parameters("LmiParameters", rows, options.profile, options.lmi_version, options.limits),
        "LmiRequest": _request(options),
        "LmiForm": form(),
    }


def _request(options: LmiOptions) -> Schema:
    return an_object(
        {
            "inputs": described(
                any_of(NON_EMPTY_TEXT, array(NON_EMPTY_TEXT, minItems=1, maxItems=options.limits.max_prompts)),
                "the prompt, or several",
            )
        },
        {
            "parameters": nullable(ref("LmiParameters")),
            "stream": described(nullable(LENIENT_BOOLEAN), "send the answer token by token", False),
            "model_name": described({}, "tolerated: the model is chosen by path, query or header"),
        },
        text=f"Profile {options.profile}, LMI version {options.lmi_version}.",
    )
