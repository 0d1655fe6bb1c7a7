"""The bytes behind a `data:` URL.

Does: read the head and decode base64 as clients really send it. Does not: look at what the bytes are; `decoding` does.
Called by the loader, on a worker thread: a large picture takes milliseconds. Source: RFC 2397, RFC 4648.
"""

from __future__ import annotations

import base64
import binascii
import re
from urllib.parse import unquote

from dragoman.pictures.limits import DATA_URL, PictureFault, PictureLimits, excerpt, too_large

SCHEME = "data:"

_HEAD = re.compile(r"data:\s*image/[\w.+*-]+\s*(?:;[^,;]*)*;\s*base64\s*", re.IGNORECASE | re.ASCII)
_URL_SAFE = str.maketrans("-_", "+/", " \t\r\n\f\v")  # and white space goes: mail-style encoders break lines


def is_data_url(url: str) -> bool:
    """True if the URL holds the data itself."""
    return url[: len(SCHEME)].lower() == SCHEME


def read_data_url(url: str, limits: PictureLimits, path: str) -> bytes:
    """The bytes that the URL holds. `path` names the parameter in messages.

    Taken as well: white space, the URL-safe alphabet, missing padding, percent-encoding, further parameters in the head.
    Raises: PictureFault for another head, for anything that is not base64, or if it is too large or empty.
    """
    head, comma, text = url.partition(",")
    if not comma or not _HEAD.fullmatch(head):
        raise PictureFault(path, "address", f"must be {DATA_URL}, got {excerpt(head)}")
    if "%" in text:
        text = unquote(text)
    text = text.translate(_URL_SAFE).rstrip("=")
    if len(text) * 3 // 4 > limits.max_bytes:
        raise too_large(path, limits)
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:  # ValueError: characters beyond ASCII
        raise PictureFault(path, "encoding", f"must be base64 after the comma, got {excerpt(text)}") from error
    if not data:
        raise PictureFault(path, "encoding", "must hold base64 data after the comma, got none")
    return data
