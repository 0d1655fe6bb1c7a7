"""Reads header fields in which clients list what they accept. On the event loop."""

from __future__ import annotations


def names(field: str, *wanted: str) -> bool:
    """True if the field lists one of `wanted` (lower case), and not with q=0 (RFC 9110, 12.4.2)."""
    for one in field.split(","):
        named, *parameters = (part.strip() for part in one.split(";"))
        if named in wanted:
            return not any(part.replace(" ", "").rstrip("0.") == "q=" for part in parameters)
    return False
