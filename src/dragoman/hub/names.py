"""The names of models on a hub, ORG/NAME with an optional revision and quantisation, as distinguished from paths."""

from __future__ import annotations

import re
from dataclasses import dataclass

FORM = "ORG/NAME[:GGUF_TYPE][@REVISION]"

# Source: huggingface_hub's rules for repository names; revisions are names of git's (branches, tags, commits).
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_-])?"
_NAME = re.compile(
    rf"(?P<repo>{_PART}/{_PART})(?::(?P<gguf>[A-Za-z0-9_-]{{1,40}}))?(?:@(?P<revision>[A-Za-z0-9_][A-Za-z0-9_./-]{{0,200}}))?",
    re.ASCII,
)
_ADDRESS = re.compile(r"(?:https://)?(?:hf\.co|huggingface\.co)/", re.ASCII)
DEFAULT_REVISION = "main"


class HubError(Exception):
    """A model of the hub cannot be obtained; one line with the reason and advice."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model on a hub. `revision`: a branch, tag or commit. `gguf`: the quantisation of a GGUF file, "" = none."""

    repo: str
    revision: str = DEFAULT_REVISION
    gguf: str = ""

    @property
    def without_gguf(self) -> str:
        return str(HubModel(self.repo, self.revision))

    def __str__(self) -> str:
        gguf = f":{self.gguf}" if self.gguf else ""
        return f"{self.repo}{gguf}" + ("" if self.revision == DEFAULT_REVISION else f"@{self.revision}")


def hub_model(text: str, revision: str = "") -> HubModel | None:
    """The model that `text` names, perhaps behind the hub's address; None if it is a path. `revision`: the default one."""
    name = text.strip().rstrip("/")
    match = _NAME.fullmatch(_ADDRESS.sub("", name, count=1) if _ADDRESS.match(name) else name)
    if match is None or any(word in match["repo"] for word in ("--", "..")):
        return None
    wanted = match["revision"] or revision or DEFAULT_REVISION
    if ".." in wanted or wanted.endswith(("/", ".lock")):
        return None
    return HubModel(match["repo"], wanted, match["gguf"] or "")
