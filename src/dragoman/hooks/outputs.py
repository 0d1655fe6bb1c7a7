"""`Output`: an answer as the handler of a model.py builds it.

Does: collect content, properties, status. Does not: send. Made by the operator's code, on one hook thread.
Source: LMI's Output class, v0.31.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np


def outputs_line(item: Any) -> bytes:
    """One streamed item as LMI writes it: an `outputs` object on a line of its own."""
    return json.dumps({"outputs": item}, ensure_ascii=False).encode("utf-8") + b"\n"


class Output:
    """One answer: a status, properties that become header fields, and pieces of content or a stream of them."""

    def __init__(self, code: int = 200, message: str = "OK") -> None:
        self.code = code
        self.message = message
        self.properties: dict[str, str] = {}
        self.content: list[tuple[str | None, bytes]] = []
        self.stream_content: Iterable[Any] | None = None
        self.stream_formatter: Callable[[Any], Any] = outputs_line
        self.on_sent: Callable[[], Any] | None = None

    def set_code(self, code: int) -> Output:
        """Set the HTTP status."""
        self.code = code
        return self

    def set_message(self, message: str) -> Output:
        """Set the text that goes with the status."""
        self.message = message
        return self

    def add_property(self, key: str, value: Any) -> Output:
        """Add a header field."""
        self.properties[key] = str(value)
        return self

    def error(self, error: str, code: int = 424, message: str = "invoke handler failure") -> Output:
        """Make this the answer to a failure."""
        self.code, self.message = code, message
        self.content.clear()
        return self.add_as_json({"code": code, "message": message, "error": error})

    def add(self, value: Any, key: str | None = None, batch_index: int | None = None) -> Output:
        """Add a piece of content: strings and bytes as they are, anything else as JSON."""
        _check_index(batch_index)
        if isinstance(value, str):
            value = value.encode("utf-8")
        if not isinstance(value, bytes | bytearray):
            return self.add_as_json(value, key)
        self.content.append((key, bytes(value)))
        return self

    def add_as_json(self, value: Any, key: str | None = None, batch_index: int | None = None) -> Output:
        """Add a piece of content as indented JSON."""
        _check_index(batch_index)
        self.content.append((key, json.dumps(value, ensure_ascii=False, indent=2).encode("utf-8")))
        self.properties.setdefault("Content-Type", "application/json")
        return self

    def add_as_numpy(self, value: Any, key: str | None = None, batch_index: int | None = None) -> Output:
        """Add an array in the .npy format."""
        _check_index(batch_index)
        buffer = io.BytesIO()
        np.save(buffer, np.asarray(value), allow_pickle=False)
        self.content.append((key, buffer.getvalue()))
        return self

    def add_as_npz(self, value: Any, key: str | None = None, batch_index: int | None = None) -> Output:
        """Add several arrays in the .npz format."""
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
        self.stream_formatter = output_formatter or (lambda item: item)
        return self

    def finalize(self, function: Callable[..., Any], *args: Any) -> Output:
        """Call `function(*args)` once the answer is complete."""
        self.on_sent = lambda: function(*args)
        return self


def _check_index(batch_index: int | None) -> None:
    """Requests come one by one, so 0 is the only place in a batch. Raises: IndexError for any other."""
    if batch_index not in (None, 0):
        raise IndexError(f"batch_index must be 0: requests are handed over one by one, got {batch_index}")
