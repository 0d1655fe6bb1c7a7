"""The kinds of options' values: each reads a text, and describes the allowed values."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from dragoman.cores import parse_nodes, show_cores
from dragoman.hub.names import FORM, hub_model
from dragoman.parameters import DURATION, PARAMETERS, Bounds, neutral_value, seconds_of

Value = str | int | float | bool | Path | tuple[str, ...] | None

TRUE_WORDS = ("true", "1", "yes", "on")
FALSE_WORDS = ("false", "0", "no", "off")


class Kind(Protocol):
    """`placeholder`: of the value in `--help`, "" for switches. `parse` raises ValueError; the caller words the message."""

    @property
    def allowed(self) -> str:
        """The allowed values, as a noun phrase for error messages, help and docs."""
        ...

    @property
    def placeholder(self) -> str: ...

    def parse(self, text: str) -> Value: ...


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number in [minimum, maximum]; `auto` gives None where the row's default is None."""

    minimum: int = 0
    maximum: int | None = None
    auto: bool = False

    @property
    def allowed(self) -> str:
        limit = f"an integer >= {self.minimum}"
        if self.maximum is not None:
            limit = f"an integer from {self.minimum} to {self.maximum}"
        return f"{limit}, or auto" if self.auto else limit

    placeholder = "N"

    def parse(self, text: str) -> int | None:
        if self.auto and text.lower() == "auto":
            return None
        number = int(text)
        if number < self.minimum or (self.maximum is not None and number > self.maximum):
            raise ValueError(text)
        return number


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number greater than (`inclusive`: or equal to) `minimum`, up to `maximum`; `auto` gives None."""

    minimum: float = 0.0
    inclusive: bool = False
    auto: bool = False
    maximum: float | None = None

    @property
    def allowed(self) -> str:
        limit = f"a number {'>=' if self.inclusive else '>'} {self.minimum:g}"
        if self.maximum is not None:
            limit += f" and <= {self.maximum:g}"
        return f"{limit}, or auto" if self.auto else limit

    placeholder = "X"

    def parse(self, text: str) -> float | None:
        if self.auto and text.lower() == "auto":
            return None
        number = float(text)
        is_low = number < self.minimum or (number == self.minimum and not self.inclusive)
        is_high = self.maximum is not None and number > self.maximum
        if is_low or is_high or not number < float("inf"):  # NaN fails this too
            raise ValueError(text)
        return number


@dataclass(frozen=True, slots=True)
class Duration:
    allowed = f"{DURATION}, at least 0"
    placeholder = "TIME"

    def parse(self, text: str) -> float:
        seconds = seconds_of(text)
        if seconds < 0:
            raise ValueError(text)
        return seconds


@dataclass(frozen=True, slots=True)
class Switch:
    """True or false, in the usual spellings of properties files and environments; `also` is another true."""

    also: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        return "true or false" + (f" (also {', '.join(self.also)})" if self.also else "")

    placeholder = ""

    def parse(self, text: str) -> bool:
        word = text.lower()
        if word in TRUE_WORDS or word in self.also:
            return True
        if word in FALSE_WORDS:
            return False
        raise ValueError(text)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words, in any case; `synonyms`: other spellings. `short` replaces words too long for a line of help."""

    words: tuple[str, ...]
    synonyms: Mapping[str, str] = field(default_factory=dict)
    short: str = ""

    @property
    def allowed(self) -> str:
        other = f" (also {', '.join(self.synonyms)})" if self.synonyms else ""
        return "one of " + ", ".join(self.words) + other

    @property
    def placeholder(self) -> str:
        return self.short or "{" + ",".join(self.words) + "}"

    def has(self, text: str) -> bool:
        return self.synonyms.get(text.lower(), text.lower()) in self.words

    def parse(self, text: str) -> str:
        if not self.has(text):
            raise ValueError(text)
        return self.synonyms.get(text.lower(), text.lower())


@dataclass(frozen=True, slots=True)
class CoreList:
    """Cores in Linux' list format, or one of a few words in any case. `has_nodes`: lists per node, separated by slashes."""

    words: tuple[str, ...]
    has_nodes: bool = False

    @property
    def allowed(self) -> str:
        form = "a list of cores for each engine, as in 0-31/32-63" if self.has_nodes else "a list of cores as in 0-3,8"
        return f"one of {', '.join(self.words)}, or {form}" if self.words[1:] else f"{self.words[0]}, or {form}"

    @property
    def placeholder(self) -> str:
        return "{" + ",".join((*self.words, "LIST/LIST" if self.has_nodes else "LIST")) + "}"

    def parse(self, text: str) -> str:
        if text.lower() in self.words:
            return text.lower()
        nodes = parse_nodes(text)
        if len(nodes) > 1 and not self.has_nodes:
            raise ValueError(text)
        return "/".join(map(show_cores, nodes))


@dataclass(frozen=True, slots=True)
class WordOrCode:
    """One of a few words, in any case, or the name of a function; `is_address`: or `module:attribute`, to be imported."""

    words: tuple[str, ...]
    is_address: bool = False

    @property
    def allowed(self) -> str:
        code = "module:factory as Python would import it" if self.is_address else "the name of a function in model.py"
        return f"one of {', '.join(self.words)}, or {code}"

    @property
    def placeholder(self) -> str:
        return "{" + ",".join((*self.words, "MODULE:FACTORY" if self.is_address else "NAME")) + "}"

    def parse(self, text: str) -> str:
        if text.lower() in self.words:
            return text.lower()
        module, _, attribute = text.partition(":")
        names = [*module.split("."), attribute] if self.is_address else [text]
        if not all(name.isidentifier() for name in names):
            raise ValueError(text)
        return text


@dataclass(frozen=True, slots=True)
class Text:
    placeholder: str = "TEXT"

    allowed = "a text that is not empty"

    def parse(self, text: str) -> str:
        if not text.strip():
            raise ValueError(text)
        return text.strip()


@dataclass(frozen=True, slots=True)
class Addresses:
    allowed = "an address, or several without repetition, separated by commas"
    placeholder = "ADDRESS,..."

    def parse(self, text: str) -> str:
        found = [part.strip().removeprefix("[").removesuffix("]") for part in text.split(",")]
        if not all(found) or len(set(found)) < len(found):
            raise ValueError(text)
        return ",".join(found)


@dataclass(frozen=True, slots=True)
class Names:
    allowed = "names separated by commas, none of them twice"
    placeholder = "NAME,..."

    def parse(self, text: str) -> tuple[str, ...]:
        names = tuple(text.replace(",", " ").split())
        if not names or len(set(names)) < len(names):
            raise ValueError(text)
        return names


@dataclass(frozen=True, slots=True)
class Some:
    words: tuple[str, ...]

    @property
    def allowed(self) -> str:
        return f"any of {', '.join(self.words)}, separated by commas, none of them twice"

    @property
    def placeholder(self) -> str:
        return ",".join(self.words)

    def parse(self, text: str) -> tuple[str, ...]:
        found = Names().parse(text.lower())
        if not set(found) <= set(self.words):
            raise ValueError(text)
        return found


_HOST = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*", re.ASCII)

_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")  # a host that ends in a number is an address. Source: WHATWG URL


_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")


@dataclass(frozen=True, slots=True)
class PathPrefix:
    allowed = (
        "a path like /llm: segments of letters, digits, dots, dashes, underscores and tildes, none of them . or .."
    )
    placeholder = "/PATH"

    def parse(self, text: str) -> str:
        path = text.strip().rstrip("/")
        if _PREFIX.fullmatch(path) is None or {".", ".."} & set(path.split("/")):
            raise ValueError(text)
        return path


@dataclass(frozen=True, slots=True)
class Hosts:
    """Hosts, separated by commas or blanks: `*`, a name, `*.domain`, an address; each with an optional port."""

    allowed = (
        "hosts separated by commas, each a name, *.DOMAIN for all names below it, an IPv4 address, [IPv6] or * for all, "
        "and :PORT behind it where that is not the usual one"
    )

    placeholder = "HOST,..."

    def parse(self, text: str) -> tuple[str, ...]:
        words = tuple(dict.fromkeys(text.lower().replace(",", " ").split()))
        if not words:
            raise ValueError(text)
        for word in words:
            _check_host(word)
        return words


def _check_host(word: str) -> None:
    host, port = re.fullmatch(r"(.*?)(?::([0-9]{1,5}))?", word, re.DOTALL).groups()  # type: ignore[union-attr]
    if port is not None and not 0 < int(port) < 65536:
        raise ValueError(word)
    name = host.removeprefix("*.")
    if host.startswith("["):
        if not host.endswith("]") or "%" in host:
            raise ValueError(word)
        IPv6Address(host[1:-1])
    elif _NUMBER.fullmatch(name.rpartition(".")[2]):
        IPv4Address(host)
    elif host != "*" and (len(name) > 253 or not _HOST.fullmatch(name) or max(map(len, name.split("."))) > 63):
        raise ValueError(word)


@dataclass(frozen=True, slots=True)
class Origins:
    allowed = "* for all, or origins separated by commas, each as https://HOST or http://HOST:PORT, without a path"
    placeholder = "ORIGIN,..."

    def parse(self, text: str) -> str:
        words = text.lower().replace(",", " ").split()
        if words != ["*"] and not (words and all(_ORIGIN.fullmatch(word) for word in words)):
            raise ValueError(text)
        return ",".join(words)


_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Urls:
    allowed = "addresses separated by commas, each as http://HOST:PORT or https://HOST/PATH, none of them twice"
    placeholder = "URL,..."

    def parse(self, text: str) -> tuple[str, ...]:
        urls = tuple(word.rstrip("/") for word in text.replace(",", " ").split())
        if not urls or len(set(urls)) < len(urls):
            raise ValueError(text)
        for url in urls:
            parts = urlsplit(url)
            has_port = parts.port is None or parts.port > 0  # raises ValueError for a wrong port
            if parts.scheme not in ("http", "https") or not parts.hostname or not has_port:
                raise ValueError(url)
            if parts.query or parts.fragment or parts.username is not None:
                raise ValueError(url)
        return urls


@dataclass(frozen=True, slots=True)
class NamedDirectories:
    allowed = "NAME=DIR separated by commas, no name twice"
    placeholder = "NAME=DIR,..."

    def parse(self, text: str) -> tuple[str, ...]:
        pairs = tuple(text.replace(",", " ").split())
        names = [name for name, _, directory in (pair.partition("=") for pair in pairs) if name and directory]
        if not names or len(names) < len(pairs) or len(set(names)) < len(names):
            raise ValueError(text)
        return pairs


@dataclass(frozen=True, slots=True)
class ImageLimit:
    """The most images in a prompt, in vLLM's form, which also has other media; None = as many as fit."""

    allowed = (
        'image=N as in image=2, the same as JSON ({"image": 2}), or none; video and audio may stand beside it, and are '
        "not taken in any case"
    )

    placeholder = "image=N"

    def parse(self, text: str) -> int | None:
        if text.lower() in ("", "none", "null", "{}", "[]"):
            return None
        if text.isdecimal():
            return int(text)
        limits = _media_limits(text)
        if not limits.keys() <= {"image", "video", "audio"}:
            raise ValueError(text)
        return {medium: _medium_limit(limit) for medium, limit in limits.items()}.get("image")


@dataclass(frozen=True, slots=True)
class JsonObject:
    """A JSON object as text. `taken`: forbidden names."""

    example: str = '{"max_pixels": 1003520}'
    taken: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        without = f", without {', '.join(self.taken)}" if self.taken else ""
        return f"a JSON object, such as {self.example}{without}"

    placeholder = "JSON"

    def parse(self, text: str) -> str | None:
        if text.lower() in ("", "none", "null"):
            return None
        try:
            found = json.loads(text)
        except RecursionError as error:
            raise ValueError(text) from error
        if not isinstance(found, dict) or not found.keys().isdisjoint(self.taken):
            raise ValueError(text)
        return text


def _media_limits(text: str) -> dict[str, Any]:
    if text.lstrip().startswith("{"):
        try:
            found: dict[str, Any] = json.loads(text)
        except RecursionError as error:
            raise ValueError(text) from error
        return found
    pairs = [pair.partition("=") for pair in text.replace(",", " ").split()]
    limits: dict[str, Any] = {medium: int(limit) for medium, _, limit in pairs}
    if not pairs or len(limits) < len(pairs):
        raise ValueError(text)
    return limits


def _medium_limit(limit: Any) -> int | None:
    count = limit.get("count") if isinstance(limit, dict) else limit
    if isinstance(limit, dict) and count is None:
        return None
    if type(count) is not int or count < 0:
        raise ValueError(count)
    return count


@dataclass(frozen=True, slots=True)
class FilePath:
    """A path or `file://` URL; its existence is checked when it is opened."""

    placeholder: str = "PATH"
    what: str = "path"

    @property
    def allowed(self) -> str:
        return f"a {self.what} on this machine"

    def parse(self, text: str) -> Path:
        path = text.strip().removeprefix("file://")
        if not path or "://" in path:
            raise ValueError(text)
        return Path(os.path.expanduser(path))  # an unknown `~user` stays unchanged


@dataclass(frozen=True, slots=True)
class ModelPath(FilePath):
    """A directory, or the name or page of a model on a hub; `resolve` decides."""

    placeholder: str = "MODEL"

    allowed = f"a directory on this machine, or a model of the hub as {FORM}"

    def parse(self, text: str) -> Path:
        return Path(text.strip()) if hub_model(text) is not None else FilePath.parse(self, text)


def parameter_kind(name: str) -> Integer | Number:
    bounds, value = PARAMETERS[name].bounds or Bounds(), neutral_value(name)
    if not isinstance(value, float):
        return Integer(int(bounds.low or 0), None if bounds.high is None else int(bounds.high))
    return Number(bounds.low or 0.0, inclusive=not bounds.is_low_open, maximum=bounds.high)
