"""Writes pydantic.json: the schemas that pydantic writes for fields of every type, with values that it takes and refuses.

Run by hand where pydantic and email-validator are installed: python tests/grammar/field_types/record_pydantic.py
"""

from __future__ import annotations

import json
import uuid
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from pathlib import Path
from re import Pattern
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import pydantic
import pydantic.types as p
from pydantic import BaseModel, ConfigDict, Field, Json, RootModel, TypeAdapter, ValidationError
from pydantic import networks as net
from typing_extensions import TypedDict

T = TypeVar("T")


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Point(NamedTuple):
    x: int
    y: int = 0


class Movie(TypedDict, total=False):
    title: str
    year: int


class Inner(BaseModel):
    a: int


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int
    b: str = "x"


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    good: bool


class Node(BaseModel):
    value: int
    next: Node | None = None


class Box(BaseModel, Generic[T]):
    item: T


class Aliased(BaseModel):
    model_config = ConfigDict(title="A title", json_schema_extra={"examples": [{"class": "x"}], "x-order": 3})
    class_: str = Field(alias="class", description="d", deprecated=True)


class Names(RootModel[list[str]]):
    pass


@dataclass
class Plain:
    a: int
    b: str = "x"
    c: list[float] | None = None


@dataclass
class Holding:
    parts: dict[str, Plain]
    kinds: set[Color]


@pydantic.dataclasses.dataclass
class Checked:
    a: Annotated[int, Field(gt=0)]
    tags: tuple[str, ...] = ()


UUID = "123e4567-e89b-{}2d3-a456-426614174000"
ROWS: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "str": (str, ["a"], [1]),
    "int": (int, [1, -5], ["a", 1.5]),
    "float": (float, [1.5, 2], ["a"]),
    "bool": (bool, [True], ["a"]),
    "None": (None, [None], [1]),
    "Any": (Any, [1, "a", None, {"a": 1}], []),
    "object": (object, [1, []], []),
    "bytes": (bytes, ["a"], [1]),
    "Decimal": (Decimal, ["1.5", 1.5], [True]),
    "Decimal bounded": (Annotated[Decimal, Field(gt=0, max_digits=5, decimal_places=2)], ["1.5", 1.5], [True]),
    "Fraction": (Fraction, ["1/3"], [True]),
    "complex": (complex, ["1+2j"], [True]),
    "datetime": (datetime, ["2026-01-02T03:04:05Z"], ["a"]),
    "date": (date, ["2026-01-02"], ["a"]),
    "time": (time, ["03:04:05Z"], ["a"]),
    "timedelta": (timedelta, ["P1DT2H"], ["a"]),
    "UUID": (uuid.UUID, [UUID.format(1)], ["a"]),
    "UUID1": (p.UUID1, [UUID.format(1)], ["a", UUID.format(4)]),
    "UUID3": (p.UUID3, [UUID.format(3)], ["a", UUID.format(4)]),
    "UUID4": (p.UUID4, [UUID.format(4)], ["a", UUID.format(1)]),
    "UUID5": (p.UUID5, [UUID.format(5)], ["a", UUID.format(1)]),
    "UUID7": (p.UUID7, [UUID.format(7)], ["a", UUID.format(1)]),
    "Path": (Path, ["/a/b"], [1]),
    "FilePath": (p.FilePath, ["/etc/passwd"], [1]),
    "DirectoryPath": (p.DirectoryPath, ["/etc"], [1]),
    "SecretStr": (p.SecretStr, ["a"], [1]),
    "SecretBytes": (p.SecretBytes, ["a"], [1]),
    "Pattern": (Pattern[str], ["a+"], [1]),
    "Json": (Json[dict[str, int]], ['{"a": 1}'], [1]),
    "Base64Str": (p.Base64Str, ["YQ=="], [1]),
    "ByteSize": (p.ByteSize, [5, "5 MB"], [None]),
    "PastDate": (p.PastDate, ["2020-01-02"], ["a"]),
    "FutureDatetime": (p.FutureDatetime, ["2999-01-02T03:04:05Z"], ["a"]),
    "EmailStr": (net.EmailStr, ["a@example.com"], ["a"]),
    "NameEmail": (net.NameEmail, ["a@example.com"], [1]),
    "HttpUrl": (net.HttpUrl, ["https://example.com/a"], ["a"]),
    "AnyUrl": (net.AnyUrl, ["ftp://example.com/a"], ["a"]),
    "PostgresDsn": (net.PostgresDsn, ["postgres://u:p@host/db"], ["a"]),
    "IPv4Address": (IPv4Address, ["1.2.3.4"], ["a"]),
    "IPv6Address": (IPv6Address, ["::1"], ["a"]),
    "IPv4Network": (IPv4Network, ["1.2.3.0/24"], [None]),
    "IPvAnyAddress": (net.IPvAnyAddress, ["1.2.3.4"], [None]),
    "IPvAnyNetwork": (net.IPvAnyNetwork, ["1.2.3.0/24"], [None]),
    "Literal": (Literal["a", 1, None], ["a", 1, None], ["b"]),
    "Enum": (Color, ["red"], ["green"]),
    "IntEnum": (Level, [1], [3]),
    "Optional": (int | None, [1, None], ["a"]),
    "Union": (int | str, [1, "a"], [None]),
    "int or model": (int | Inner, [1, {"a": 1}], ["a"]),
    "discriminated": (Annotated[Cat | Dog, Field(discriminator="kind")], [{"kind": "cat", "lives": 9}], [{"kind": "cow"}]),
    "list": (list, [[1, "a"]], [1]),
    "list[int]": (list[int], [[], [1, 2]], [["a"]]),
    "list bounded": (Annotated[list[int], Field(min_length=1, max_length=2)], [[1]], [[], [1, 2, 3]]),
    "set[int]": (set[int], [[1, 2]], [["a"]]),
    "frozenset[Literal]": (frozenset[Literal["a", "b"]], [["a"]], [["c"]]),
    "deque[int]": (deque[int], [[1]], [["a"]]),
    "tuple": (tuple[int, str], [[1, "a"]], [["a", 1], [1], [1, "a", 2]]),
    "tuple[int, ...]": (tuple[int, ...], [[1, 2]], [["a"]]),
    "Sequence[int]": (Sequence[int], [[1]], [["a"]]),
    "Iterable[int]": (Iterable[int], [[1]], [1]),
    "dict": (dict, [{"a": 1}], [1]),
    "dict[str, int]": (dict[str, int], [{"a": 1}], [{"a": "b"}]),
    "dict[int, str]": (dict[int, str], [{"1": "a"}], [{"1": 2}]),
    "dict[Literal, int]": (dict[Literal["a", "b"], int], [{"a": 1}, {"a": 1, "b": 2}], [{"c": 1}, {"a": "x"}]),
    "dict[Enum, int]": (dict[Color, int], [{"red": 1}], [{"green": 1}]),
    "dict[UUID, int]": (dict[uuid.UUID, int], [{UUID.format(1): 1}], [{UUID.format(1): "a"}]),
    "dict[pattern, int]": (
        dict[Annotated[str, Field(pattern="^[a-z]+$")], int],
        [{"ab": 1}],
        [{"A": 1}],
    ),
    "dict[lengths, int]": (dict[Annotated[str, Field(min_length=2)], int], [{"ab": 1}], [{"a": 1}]),
    "dict bounded": (Annotated[dict[str, int], Field(min_length=1)], [{"a": 1}], [{}]),
    "Mapping[str, list]": (Mapping[str, list[int]], [{"a": [1]}], [{"a": 1}]),
    "OrderedDict": (OrderedDict[str, int], [{"a": 1}], [{"a": "b"}]),
    "NamedTuple": (Point, [[1, 2]], [["a"]]),
    "TypedDict": (Movie, [{"title": "a", "year": 1}, {}], [{"year": "a"}]),
    "str pattern": (Annotated[str, Field(pattern=r"^[a-z]{2}$")], ["ab"], ["a1"]),
    "str lengths": (Annotated[str, Field(min_length=2, max_length=3)], ["ab"], ["a", "abcd"]),
    "int bounds": (Annotated[int, Field(ge=1, lt=10)], [1, 9], [0, 10]),
    "int64": (Annotated[int, Field(ge=-(2**63), le=2**63 - 1)], [0, -5, 2**63 - 1], [2**63]),
    "uint64": (Annotated[int, Field(ge=0, le=2**64 - 1)], [0, 2**63 - 1], [-1]),
    "float bounds": (Annotated[float, Field(ge=0, le=1)], [0.5, 1], [1.5]),
    "finite float": (p.FiniteFloat, [0.5], ["a"]),
    "multiple": (Annotated[int, Field(multiple_of=5)], [10], [11]),
    "PositiveInt": (p.PositiveInt, [1], [0]),
    "StrictStr": (p.StrictStr, ["a"], [1]),
    "model": (Inner, [{"a": 1}], [{"a": "b"}, {}]),
    "model without more": (Strict, [{"a": 1}, {"a": 1, "b": "c"}], [{"a": 1, "c": 2}]),
    "model with more": (Extra, [{"a": 1, "z": [1]}], [{"z": 1}]),
    "recursive model": (Node, [{"value": 1, "next": {"value": 2, "next": None}}], [{"value": 1, "next": 2}]),
    "generic model": (Box[list[int]], [{"item": [1]}], [{"item": 1}]),
    "alias, title, examples": (Aliased, [{"class": "a"}], [{"class": 1}]),
    "root model": (Names, [["a"]], [[1]]),
    "constrained alias": (Annotated[str, Field(description="d", examples=["x"], deprecated=True)], ["a"], [1]),
    "ImportString": (p.ImportString, ["math.cos"], [1]),
    "PaymentCard, as str": (p.constr(strip_whitespace=True, to_upper=True), ["A"], [1]),
    "conset": (p.conset(int, min_length=1), [[1]], [[]]),
    "dataclass": (Plain, [{"a": 1}, {"a": 1, "b": "x", "c": [1.5]}], [{"a": "x"}]),
    "dataclass of dataclasses": (
        Holding,
        [{"parts": {"p": {"a": 1}}, "kinds": ["red"]}],
        [{"parts": {"p": {}}, "kinds": []}, {"parts": {}, "kinds": ["x"]}],
    ),
    "pydantic dataclass": (Checked, [{"a": 1, "tags": ["x"]}], [{"a": 0}]),
}  # fmt: skip


def takes(adapter: TypeAdapter[Any], value: Any) -> bool:
    """Whether pydantic itself takes the value from JSON."""
    try:
        adapter.validate_json(json.dumps(value))
    except ValidationError:
        return False
    return True


def main() -> None:
    """Check every row with pydantic, and write them."""
    rows = []
    for name, (kind, valid, invalid) in ROWS.items():
        adapter = TypeAdapter(kind)
        assert all(takes(adapter, value) for value in valid), name
        rows.append({"name": name, "schema": adapter.json_schema(), "valid": valid, "invalid": invalid})
    text = ",\n".join(json.dumps(row) for row in rows)
    made = f'{{"by": "pydantic {pydantic.VERSION}", "rows": [\n{text}\n]}}\n'
    Path(__file__).with_name("pydantic.json").write_text(made)


if __name__ == "__main__":
    main()
