"""Commands and the answers shown for them, taken from the ```console blocks of a Markdown page."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

DOCUMENTED_URL = "http://127.0.0.1:8080"

_BLOCK = re.compile(
    r"^```console\n\$ (?P<command>(?:[^\n]*\\\n)*[^\n]*)\n(?P<answer>(?:(?!```)[^\n]*\n)*)```$", re.MULTILINE
)

# What differs from run to run: identifiers, times, what earlier requests left in the cache; or from release to release.
_VARYING = [
    (re.compile(r'"id":\s?"(?:chatcmpl|cmpl)-[^"]*"'), '"id":"..."'),
    (re.compile(r'"id":\s?"call_[^"]*"'), '"id":"..."'),
    (re.compile(r'"(item_)?id":\s?"(?:resp|msg|rs|fc)_[^"]*"'), r'"\1id":"..."'),
    (re.compile(r'"id":\s?"msg_[^"]*"'), '"id":"..."'),
    (re.compile(r'"input_tokens":\d+,("cache_creation_input_tokens":\d+)'), r'"input_tokens":0,\g<1>'),
    (re.compile(r'"cache_read_input_tokens":\d+'), '"cache_read_input_tokens":0'),
    (re.compile(r'"system_fingerprint":\s?"[^"]*"'), '"system_fingerprint":"..."'),
    (re.compile(r'"cached_tokens":\s?\d+'), '"cached_tokens":0'),
    (re.compile(r'"(created|created_at|completed_at)":\s?\d+'), r'"\1":0'),
    (re.compile(r'"created_at":\s?"[^"]*"'), '"created_at":"..."'),
    (re.compile(r'"(\w+_duration)":\d+'), r'"\1":0'),
]


@dataclass(frozen=True)
class ConsoleBlock:
    """One command of a page, with the answer that the page shows; `span` is where the answer stands in the page."""

    page: Path
    command: str
    answer: str
    span: tuple[int, int]

    def run(self, base_url: str) -> str:
        """What the command writes when it is sent to `base_url`. Raises: CalledProcessError if it fails."""
        command = self.command.replace(DOCUMENTED_URL, base_url)
        result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=60)
        return result.stdout if result.stdout.endswith("\n") else result.stdout + "\n"


def console_blocks(page: Path) -> list[ConsoleBlock]:
    """The blocks of `page` in their order."""
    text = page.read_text(encoding="utf-8")
    return [
        ConsoleBlock(page, match["command"], match["answer"], match.span("answer")) for match in _BLOCK.finditer(text)
    ]


def without_varying_parts(answer: str) -> str:
    """The answer with identifiers and times replaced by fixed ones."""
    for pattern, fixed in _VARYING:
        answer = pattern.sub(fixed, answer)
    return answer


def write_answers(page: Path, answers: list[str]) -> None:
    """Put `answers` in the place of those that `page` shows, in the order of its blocks."""
    text = page.read_text(encoding="utf-8")
    for block, answer in reversed(list(zip(console_blocks(page), answers, strict=True))):
        text = text[: block.span[0]] + answer + text[block.span[1] :]
    page.write_text(text, encoding="utf-8")
