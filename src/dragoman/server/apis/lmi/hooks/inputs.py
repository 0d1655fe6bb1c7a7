"""`Input`: an HTTP request as a model.py sees it, on one hook thread. Source: LMI's Input class, v0.31."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dragoman.server.apis.lmi.hooks.ndlist import read_ndlist
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
    """One request. `model`: the served model as a handler may use it (`generate`, `stream`), None where there is none."""

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
