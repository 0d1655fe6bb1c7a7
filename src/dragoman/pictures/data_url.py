"""Reads the bytes of a `data:` URL, as clients really send it. Source: RFC 2397, RFC 4648."""

from __future__ import annotations

import binascii
import re

from dragoman.pictures.limits import DATA_URL, PictureFault, PictureLimits, excerpt, too_large

SCHEME = "data:"

_HEAD = re.compile(r"data:\s*image/[\w.+*-]+\s*(?:;[^,;]*)*;\s*base64\s*", re.IGNORECASE | re.ASCII)
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_WHITE_SPACE = b" \t\r\n\f\v"  # dropped: mail-style encoders break lines
_ESCAPED = {f"%{ord(sign):02X}": sign for sign in "+/=-_ \t\r\n\f\v"}  # signs that base64 may need to escape
_OTHER_ESCAPE = re.compile("%(?!{})".format("|".join(escape[1:] for escape in _ESCAPED)), re.IGNORECASE)
_LONGEST = 2  # times the length of its base64, for white space and escapes
_LEAST_LONGEST = 65_536  # characters


def is_data_url(url: str) -> bool:
    return url[: len(SCHEME)].lower() == SCHEME


def read_data_url(url: str, limits: PictureLimits, path: str) -> bytes:
    """The bytes in the URL, also with white space, the URL-safe alphabet, missing padding or escaped signs.

    Decoding other escapes would take a hundred times the text's memory. Raises: PictureFault.
    """
    begin = url.find(",") + 1
    head = url[: max(begin - 1, 0)] if begin else url
    if not begin or not _HEAD.fullmatch(head):
        raise PictureFault(path, "address", f"must be {DATA_URL}, got {excerpt(head)}")
    most = limits.max_bytes * 4 // 3 + 4
    if len(url) - begin > max(_LONGEST * most, _LEAST_LONGEST):
        raise too_large(path, limits)
    text = url[begin:]
    if "%" in text and not _OTHER_ESCAPE.search(text):
        for escape, sign in _ESCAPED.items():
            text = text.replace(escape, sign).replace(escape.lower(), sign)
    try:
        encoded = text.encode("ascii").translate(_URL_SAFE, _WHITE_SPACE).rstrip(b"=")
        if len(encoded) * 3 // 4 > limits.max_bytes:
            raise too_large(path, limits)
        data = binascii.a2b_base64(encoded + b"=" * (-len(encoded) % 4), strict_mode=True)
    except ValueError as error:  # from binascii, or for characters beyond ASCII
        raise PictureFault(path, "encoding", f"must be base64 after the comma, got {excerpt(text)}") from error
    if not data:
        raise PictureFault(path, "encoding", "must hold base64 data after the comma, got none")
    return data
