"""Files of batches for tests: lines that ask, and what their answers hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def asking(custom_id: str, path: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    """A request's line, of a completion by default."""
    if path == "/v1/completions" and not body:
        body = {"prompt": f"Once upon a time {custom_id}", "max_tokens": 4, "temperature": 0}
    return {"custom_id": custom_id, "method": "POST", "url": path, "body": body}


def write_lines(path: Path, *lines: object) -> Path:
    """The file, with a line for each: JSON, or bytes and texts as they are."""
    encoded = [
        line if isinstance(line, bytes) else line.encode() if isinstance(line, str) else json.dumps(line).encode()
        for line in lines
    ]
    path.write_bytes(b"".join(line + b"\n" for line in encoded))
    return path


def read_answers(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of answers, each of which has to be whole."""
    content = path.read_bytes()
    assert content == b"" or content.endswith(b"\n")
    return [json.loads(line) for line in content.splitlines()]


def ids_of(path: Path) -> list[str]:
    """The custom_ids of a file of answers, sorted."""
    return sorted(answer["custom_id"] for answer in read_answers(path))
