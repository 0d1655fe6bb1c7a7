"""`decode` and `encode` of LMI's `encode_decode` module: content by its content type, for a model.py, on a hook thread."""

from __future__ import annotations

import io
import json
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from dragoman.server.apis.lmi.hooks.inputs import Input
from dragoman.server.apis.lmi.hooks.outputs import Output
from dragoman.server.json_body import check_structure

_MAX_FIELDS = 2_000  # of a form, which are read one by one


def decode(inputs: Input, content_type: str | None = None, key: str | None = None) -> Any:
    """JSON as it is, all else under `inputs`; without a content type it is JSON. Raises: ValueError, KeyError."""
    media_type = (content_type or "application/json").partition(";")[0].strip().lower()
    match media_type:
        case "text/plain":
            return {"inputs": inputs.get_as_string(key)}
        case "text/csv":
            return {"inputs": inputs.get_as_csv(key)}
        case "application/x-npy" | "tensor/npy" | "tensor/ndlist":
            return {"inputs": inputs.get_as_numpy(key)}
        case "tensor/npz" | "application/x-npz":
            return {"inputs": inputs.get_as_npz(key)}
        case "multipart/form-data":
            return _typed({name: piece.decode("utf-8") for name, piece in inputs.get_content()})
        case "application/x-www-form-urlencoded" if not inputs.get_as_bytes(key).lstrip().startswith(b"{"):
            return _typed(
                dict(parse_qsl(inputs.get_as_string(key), keep_blank_values=True, max_num_fields=_MAX_FIELDS))
            )
        case _ if media_type.startswith("image/"):
            return {"inputs": inputs.get_as_image(key)}
        case _:
            return inputs.get_as_json(key)


def encode(outputs: Output, value: Any, accept: str | None = None, key: str | None = None) -> Output:
    """Add `value` to an answer in the form that `accept` names: numpy's formats, else JSON."""
    if accept and "tensor/npz" in accept:
        return outputs.add_as_npz(value, key).add_property("Content-Type", "tensor/npz")
    if accept and "tensor/ndlist" in accept:
        return outputs.add_as_numpy(value, key).add_property("Content-Type", "tensor/ndlist")
    if accept and ("tensor/npy" in accept or "application/x-npy" in accept):
        buffer = io.BytesIO()
        np.save(buffer, np.asarray(value), allow_pickle=False)
        return outputs.add(buffer.getvalue(), key).add_property("Content-Type", "tensor/npy")
    return outputs.add_as_json(value, key)


def _typed(fields: dict[str, Any]) -> dict[str, Any]:
    if fields.get("parameters"):
        check_structure(fields["parameters"].encode())
        fields["parameters"] = json.loads(fields["parameters"])
    return fields
