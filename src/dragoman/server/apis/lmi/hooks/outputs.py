"""`Output`: an answer as the handler of a model.py builds it, on one hook thread. Source: LMI's Output class, v0.31."""

from __future__ import annotations

import datetime
import io
import json
import logging
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from dragoman.server.apis.lmi.hooks.ndlist import write_ndlist

JSON = "application/json"
JSONLINES = "application/jsonlines"
MODEL_ERROR = 424  # what LMI answers for everything that its handlers refuse or fail at

logger = logging.getLogger("dragoman.hooks")


def to_json(value: Any, indent: int | None = None) -> bytes:
    """A value as JSON. Numpy's numbers and arrays count as Python's. Raises: TypeError."""
    return json.dumps(value, ensure_ascii=False, indent=indent, default=_plain).encode("utf-8")


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, datetime.datetime):
        return str(value)
    raise TypeError(f"JSON cannot hold a {type(value).__name__}")


def outputs_line(item: Any) -> bytes:
    return to_json({"outputs": item}) + b"\n"


class Output:
    """One answer: a status, properties that become header fields, and pieces of content or a stream of them."""

    def __init__(self, code: int = 200, message: str = "OK") -> None:
        self.code = code
        self.message = message
        self.properties: dict[str, str] = {}
        self.content: list[tuple[str | None, bytes]] = []
        self.stream_content: Iterable[Any] | None = None
        self.stream_formatter: Callable[[Any], Any] = outputs_line
        self.stream_media_type = ""  # of a stream whose handler names none
        self.on_sent: Callable[[], Any] | None = None
        self.failure: str | None = None  # of an asynchronous handler's answer or chunk
        self.is_last = False  # of an asynchronous handler's chunk

    def set_code(self, code: int) -> Output:
        self.code = code
        return self

    def set_message(self, message: str) -> Output:
        self.message = message
        return self

    def add_property(self, key: str, value: Any) -> Output:
        self.properties[key] = str(value)
        return self

    def error(self, error: str, code: int = MODEL_ERROR, message: str = "invoke handler failure") -> Output:
        self.code, self.message = code, message
        self.content.clear()
        self.stream_content = None
        self.properties = {name: value for name, value in self.properties.items() if name.lower() != "content-type"}
        return self.add_as_json({"code": code, "message": message, "error": error})

    def add(self, value: Any, key: str | None = None, batch_index: int | None = None) -> Output:
        _check_index(batch_index)
        if isinstance(value, str):
            value = value.encode("utf-8")
        if not isinstance(value, bytes | bytearray):
            return self.add_as_json(value, key)
        self.content.append((key, bytes(value)))
        return self

    def add_as_json(self, value: Any, key: str | None = None, batch_index: int | None = None) -> Output:
        _check_index(batch_index)
        self.content.append((key, to_json(value, indent=2)))
        if not any(name.lower() == "content-type" for name in self.properties):
            self.properties["Content-Type"] = JSON
        return self

    def add_as_numpy(self, value: Any, key: str | None = None, batch_index: int | None = None) -> Output:
        _check_index(batch_index)
        self.content.append((key, write_ndlist(value)))
        return self

    def add_as_npz(self, value: Any, key: str | None = None, batch_index: int | None = None) -> Output:
        _check_index(batch_index)
        buffer = io.BytesIO()
        np.savez(buffer, *value)
        self.content.append((key, buffer.getvalue()))
        return self

    def add_stream_content(
        self, stream_content: Iterable[Any], output_formatter: Callable[[Any], Any] | None = outputs_line
    ) -> Output:
        """Send the items of an iterator as they come, each through `output_formatter` (None: as they are)."""
        self.stream_content = stream_content
        self.stream_media_type = JSONLINES if output_formatter is outputs_line else ""
        self.stream_formatter = output_formatter or (lambda item: item)
        return self

    def finalize(self, function: Callable[..., Any], *args: Any) -> Output:
        self.on_sent = lambda: function(*args)
        return self

    def execute_finalize(self) -> None:
        if self.on_sent is None:
            return
        try:
            self.on_sent()
        except Exception as error:  # hook call: the operator's function
            logger.warning("the function given to Output.finalize failed", exc_info=error)

    def body(self) -> bytes | None:
        """The content named `data`, else the first; None if there is none."""
        named = next((piece for key, piece in self.content if key == "data"), None)
        return named if named is not None or not self.content else self.content[0][1]


def _check_index(batch_index: int | None) -> None:
    """Requests come one by one, so 0 is the only place in a batch. Raises: IndexError for any other."""
    if batch_index not in (None, 0):
        raise IndexError(f"batch_index must be 0: requests are passed one at a time, got {batch_index}")
