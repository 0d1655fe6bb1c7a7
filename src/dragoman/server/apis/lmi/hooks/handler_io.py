"""The objects that an operator's handler takes and gives, `Input` and `Output`, and LMI's helpers around them.

`decode` and `encode` are those of LMI's `encode_decode`; the helpers of asynchronous handlers those of `async_utils`.
Used on a hook thread, or on an asynchronous handler's event loop.
Sources: LMI's Input and Output classes, v0.31; LMI's async handlers, v0.36.
"""

from __future__ import annotations

import csv
import datetime
import io
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import numpy as np
import numpy.typing as npt

from dragoman.server.apis.lmi.hooks.ndlist import read_ndlist, write_ndlist
from dragoman.server.json_body import check_structure

if TYPE_CHECKING:
    from PIL.Image import Image

_NPZ_MAGIC, _NPY_MAGIC = b"PK", b"\x93NUMPY"


class Properties(dict[str, str]):
    """Header fields and query parameters by name; looking up a name ignores its case."""

    def __init__(self, values: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> None:
        super().__init__(values)
        self._names = {name.lower(): name for name in self}

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(self._names.get(name.lower(), name))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._names

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(self._names.get(name.lower(), name), default)


class Content(list[tuple[str, bytes]]):
    def get_keys(self) -> list[str]:
        return [name for name, _ in self]

    def get_values(self) -> list[bytes]:
        return [piece for _, piece in self]

    def key_at(self, index: int) -> str:
        return self[index][0]

    def value_at(self, index: int) -> bytes:
        return self[index][1]

    def get(self, key: str) -> bytes | None:
        return next((piece for name, piece in self if name == key), None)

    def contains_key(self, key: str) -> bool:
        return any(name == key for name, _ in self)

    def size(self) -> int:
        return len(self)

    def is_empty(self) -> bool:
        return not self


class Input:
    """One request, as a model.py sees it.

    `model`: the served model as a handler may use it (`generate`, `stream`), None where there is none.
    """

    def __init__(
        self, properties: Mapping[str, str], content: Iterable[tuple[str, bytes]] = (), function_name: str | None = None
    ) -> None:
        self.properties = Properties(properties)
        self.content = Content(content)
        self.function_name = function_name
        self.model: Any = None

    def get_function_name(self) -> str | None:
        return self.function_name

    def get_properties(self) -> Properties:
        return self.properties

    def get_property(self, key: str) -> str | None:
        value: str | None = self.properties.get(key)
        return value

    def get_content(self) -> Content:
        return self.content

    def contains_key(self, key: str) -> bool:
        return self.content.contains_key(key)

    def is_empty(self) -> bool:
        """True if the request has no content: the call by which a handler is initialised."""
        return not self.content

    def is_batch(self) -> bool:
        return False

    def get_batch_size(self) -> int:
        return 1

    def get_batches(self) -> list[Input]:
        return [self]

    def get_as_bytes(self, key: str | None = None) -> bytes:
        """Without `key` the piece called `data`, else the first. Raises: KeyError if there is none."""
        if key is None:
            key = "data" if self.contains_key("data") or not self.content else self.content[0][0]
        for name, piece in self.content:
            if name == key:
                return piece
        raise KeyError(key)

    def get_as_string(self, key: str | None = None) -> str:
        return self.get_as_bytes(key).decode("utf-8")

    def get_as_json(self, key: str | None = None) -> Any:
        """Raises: KeyError; ValueError naming the content if it is not JSON."""
        piece = self.get_as_bytes(key)
        try:
            check_structure(piece)
            return json.loads(piece)
        except ValueError as error:
            raise ValueError(f"the content is not valid JSON: {error}, got {piece[:80]!r}") from error

    def get_as_numpy(self, key: str | None = None) -> list[npt.NDArray[Any]] | npt.NDArray[Any]:
        """DJL's ndlist or .npz gives a list, .npy one array. Raises: KeyError, ValueError. Pickled objects are refused."""
        piece = self.get_as_bytes(key)
        if piece.startswith(_NPZ_MAGIC):
            return self.get_as_npz(key)
        if not piece.startswith(_NPY_MAGIC):
            return read_ndlist(piece)
        array: npt.NDArray[Any] = np.load(io.BytesIO(piece), allow_pickle=False)
        return array

    def get_as_npz(self, key: str | None = None) -> list[npt.NDArray[Any]]:
        with np.load(io.BytesIO(self.get_as_bytes(key)), allow_pickle=False) as arrays:
            return [arrays[name] for name in arrays.files]

    def get_as_csv(self, key: str | None = None) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.get_as_string(key))))

    def get_as_image(self, key: str | None = None) -> Image:
        from PIL.Image import open as open_image  # here: it takes longer to import than all of this package

        return open_image(io.BytesIO(self.get_as_bytes(key)))


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


def create_non_stream_output(
    data: str | Mapping[str, Any],
    properties: Mapping[str, Any] | None = None,
    error: str | None = None,
    code: int | None = None,
) -> Output:
    """A whole answer: `data` as a line of JSON, or the text of it; with `error` LMI's error object in its place."""
    output = _output(data, JSON, error, code)
    for name, value in (properties or {}).items():
        output.add_property(name, value)
    return output


def create_stream_chunk_output(
    data: str | Mapping[str, Any], last_chunk: bool, error: str | None = None, code: int | None = None
) -> Output:
    """One chunk of a streamed answer; nothing is taken after the last one, or after one with an `error`."""
    output = _output(data, JSONLINES, error, code)
    output.is_last = last_chunk
    return output


async def handle_streaming_response(
    response: AsyncIterable[Any],
    stream_output_formatter: Callable[..., Any],
    accumulate_chunks: bool = False,
    **kwargs: Any,
) -> AsyncGenerator[Output, None]:
    """The chunks of a stream, each as the formatter writes it; if that raises, the stream ends with its error.

    The formatter is called with a chunk and `kwargs`, and returns its text and whether it is the last one; with
    `accumulate_chunks` it is also given `history`, and returns the new one as a third value.
    """
    history: list[Any] = []
    async for chunk in response:
        try:
            if accumulate_chunks:
                written, is_last, history = stream_output_formatter(chunk, history=history, **kwargs)
            else:
                written, is_last = stream_output_formatter(chunk, **kwargs)
        except Exception as error:  # hook call: the operator's formatter
            logger.warning("the stream's output formatter failed", exc_info=error)
            yield create_stream_chunk_output("", True, error=str(error), code=MODEL_ERROR)
            return
        yield create_stream_chunk_output(written, is_last)
        if is_last:
            return


def _output(data: str | Mapping[str, Any], media_type: str, error: str | None, code: int | None) -> Output:
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    output = Output(200 if code is None else code).add(text + "\n").add_property("Content-Type", media_type)
    output.failure = error or None
    return output
