"""Reads OpenVINO Model Server's files: a model's graph.pbtxt as options of this server, and config.json as its models.

Source: LLMCalculatorOptions of OVMS 2026.3 (src/llm/llm_calculator.proto) and of the releases before; its documentation,
"Starting the server: serving multiple models".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.config.entries import ModelEntry
from dragoman.config.foreign import OFF, REASONS, ForeignOption, foreign_in
from dragoman.config.pbtxt import MAX_BYTES, Field, Message, PbtxtError, parse_pbtxt
from dragoman.config.sources import Given

GRAPH_NAME = "graph.pbtxt"
_OPTIONS_TYPE = "mediapipe.LLMCalculatorOptions"

_SAME = {  # name there -> key here, for options with equal values
    "models_path": "option.model_id",
    "max_num_batched_tokens": "option.max_rolling_batch_prefill_tokens",
    "max_num_seqs": "option.max_rolling_batch_size",
    "best_of_limit": "option.max_best_of",
    "enable_prefix_caching": "option.enable_prefix_caching",
}
_SAME_PROPERTIES = {
    "INFERENCE_NUM_THREADS": "option.threads", "CACHE_DIR": "option.cache_dir", "prompt_lookup": "option.prompt_lookup",
}  # fmt: skip
_TOOL_PARSERS = {
    "hermes3": "hermes", "llama3": "llama3_json", "phi4": "phi4_mini_json", "mistral": "mistral", "gptoss": "gpt_oss",
    "qwen3coder": "qwen3_coder", "lfm2": "lfm2", "devstral": "mistral_args",
}  # fmt: skip
_REASONING_PARSERS = {"qwen3": "think", "gptoss": "gpt_oss"}
_CACHE_TYPES = {"u8": "u8", "i8": "u8", "f16": "auto", "bf16": "auto", "f32": "f32"}

_FOREIGN, _PROPERTIES = foreign_in("ovms_graph"), foreign_in("ovms_plugin")

CONFIG_NAME = "config.json"
_MODELS, _GRAPHS = "model_config_list", "mediapipe_config_list"
_TEXT_ONLY = "this server generates text, and serves what has a graph.pbtxt with an LLM"
_MAX_BYTES = 16 << 20

_READ_KEYS = {"name", "base_path", "graph_path"}
_FOREIGN_KEYS = foreign_in("ovms_config")


@dataclass(slots=True)
class OvmsOptions:
    givens: list[Given] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def read_graph(directory: Path) -> OvmsOptions:
    path, found = directory / GRAPH_NAME, OvmsOptions()
    if not path.is_file():
        return found
    try:
        options = llm_options(path)
    except PbtxtError as error:
        found.problems.append(f"{path}: {error}")
        return found
    if options is None:
        found.problems.append(f"{path}: has no node with {_OPTIONS_TYPE}; this server generates text")
        return found
    reader = _Reader(path, directory, found)
    for entry in options.fields:
        reader.read(entry)
    return found


def llm_options(path: Path) -> Message | None:
    """The options of a graph's first LLM node; None if it has none. Raises: PbtxtError if it cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise PbtxtError(f"has more than {MAX_BYTES >> 20} MiB")
        graph = parse_pbtxt(data.decode())
    except (OSError, UnicodeDecodeError) as error:
        raise PbtxtError(f"cannot be read as UTF-8 text: {error}") from error
    for node in graph.messages("node"):
        for options in (*node.messages("node_options"), *node.messages("options")):
            for entry in options.fields:
                name = entry.name.strip("[]").rpartition("/")[2].removesuffix(".ext")
                if name == _OPTIONS_TYPE and isinstance(entry.value, Message):
                    return entry.value
    return None


def version_folder(directory: Path) -> Path:
    """The folder of the highest version, if a directory has only versions; else the directory."""
    if not directory.is_dir() or any(child.is_file() for child in directory.iterdir()):
        return directory
    numbers = [int(child.name) for child in directory.iterdir() if child.name.isdecimal() and child.name.isascii()]
    return directory / str(max(numbers)) if numbers and (directory / str(max(numbers))).is_dir() else directory


class _Reader:
    def __init__(self, path: Path, directory: Path, found: OvmsOptions) -> None:
        self._path = path
        self._directory = directory
        self._found = found
        self._special: Mapping[str, Callable[[Given], None]] = {
            "cache_size": self._cache_size,
            "draft_models_path": self._draft,
            "draft_eagle3_mode": self._eagle,
            "tool_parser": self._tool_parser,
            "reasoning_parser": self._reasoning_parser,
            "response_parser": self._response_parser,
            "plugin_config": self._plugin_config,
        }

    def read(self, field: Field) -> None:
        is_text = isinstance(field.value, str)
        written = Given(field.name, "", str(field.value) if is_text else "{...}", f"{self._path} line {field.line}")
        if field.name in self._special and is_text:
            self._special[field.name](written)
        elif field.name in _SAME and is_text:
            self._give(written, _SAME[field.name], written.text)
        elif field.name in _FOREIGN:
            self._note(written, _FOREIGN[field.name])
        else:
            self._report(written, "it is unknown")

    def _give(self, written: Given, key: str, text: str) -> None:
        if text:
            self._found.givens.append(replace(written, key=key, text=text))

    def _note(self, written: Given, option: ForeignOption) -> None:
        if not option.is_harmless(written.text):
            self._report(written, option.reason)

    def _report(self, written: Given, reason: str) -> None:
        self._found.notices.append(f"{_cited(written)}: no effect here; {reason}")

    def _cache_size(self, written: Given) -> None:
        if written.text != "0":  # as large as memory allows
            self._give(written, "option.kv_cache_gb", written.text)

    def _draft(self, written: Given) -> None:
        if written.text:
            self._give(written, "option.draft_model", str(self._directory / written.text))

    def _eagle(self, written: Given) -> None:
        if written.text.lower() not in OFF:
            self._found.problems.append(f"{_cited(written)}: draft models of this kind do not run here")

    def _tool_parser(self, written: Given) -> None:
        self._parser(written, "option.tool_call_parser", _TOOL_PARSERS)

    def _reasoning_parser(self, written: Given) -> None:
        self._parser(written, "option.reasoning_parser", _REASONING_PARSERS)

    def _response_parser(self, written: Given) -> None:
        self._tool_parser(written)
        if written.text in _REASONING_PARSERS:
            self._reasoning_parser(written)

    def _parser(self, written: Given, key: str, known: Mapping[str, str]) -> None:
        if written.text in known:
            self._give(written, key, known[written.text])
        elif written.text:
            self._report(written, f"the chat template tells it, or {key}")

    def _plugin_config(self, written: Given) -> None:
        try:
            properties = json.loads(written.text) if written.text.strip() else {}
        except (ValueError, RecursionError):
            properties = None
        if not isinstance(properties, dict):
            self._found.problems.append(f"{_cited(written)}: must be a JSON object")
            return
        for name, value in properties.items():
            text = value if isinstance(value, str) else json.dumps(value)
            self._property(Given(name, "", text, f"{written.source}, plugin_config"))

    def _property(self, written: Given) -> None:
        name, text = written.name, written.text
        if name in ("KV_CACHE_PRECISION", "KEY_CACHE_PRECISION", "VALUE_CACHE_PRECISION"):
            self._cache_type(written)
        elif name in _SAME_PROPERTIES:
            self._give(written, _SAME_PROPERTIES[name], text)
        elif (name, text.lower()) == ("INFERENCE_PRECISION_HINT", "f32"):
            self._give(written, "option.dtype", "f32")
        else:
            self._note(written, _PROPERTIES.get(name, ForeignOption(name, REASONS["runtime"])))

    def _cache_type(self, written: Given) -> None:
        known = _CACHE_TYPES.get(written.text.lower())
        if known is None:
            self._report(written, "the smallest type of the cache is u8, see option.kv_dtype")
        self._give(written, "option.kv_dtype", known or "u8")


def _cited(written: Given) -> str:
    return f"{written.name}={written.text} ({written.source})"


class OvmsModels(NamedTuple):
    entries: list[ModelEntry]
    notices: list[str]
    problems: list[str]


def read_ovms_models(directory: Path) -> OvmsModels | None:
    """The models in `directory`/config.json; None if that is not OVMS's file."""
    path = directory / CONFIG_NAME
    content = _lists(path)
    if content is None:
        return None
    found = OvmsModels([], [], [])
    for key, value in content.items():
        if key not in (_MODELS, _GRAPHS) and value:
            _note(found, key, value, path)
    for item in _items(content, path, found):
        _add(found, item, path)
    if not found.entries and not found.problems:
        found.problems.append(f"{path}: lists no model that can be served; {_TEXT_ONLY}")
    return found


def _lists(path: Path) -> dict[str, Any] | None:
    """The file's content if it has one of the two lists: a model's own config.json has neither."""
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    is_ovms = isinstance(content, dict) and (_MODELS in content or _GRAPHS in content)
    return content if is_ovms else None


def _items(content: Mapping[str, Any], path: Path, found: OvmsModels) -> Iterator[dict[str, Any]]:
    for key in (_MODELS, _GRAPHS):
        listed = content.get(key, [])
        for number, item in enumerate(listed if isinstance(listed, list) else [listed], start=1):
            described = item.get("config") if key == _MODELS and isinstance(item, dict) else item
            name = described.get("name") if isinstance(described, dict) else None
            if isinstance(described, dict) and isinstance(name, str) and name:
                yield described
            else:
                found.problems.append(f"{path}: entry {number} of {key} must be an object with a name")


def _add(found: OvmsModels, item: dict[str, Any], path: Path) -> None:
    name = item["name"]
    base, graph_path = item.get("base_path", name), item.get("graph_path", GRAPH_NAME)
    if not (isinstance(base, str) and isinstance(graph_path, str)):
        found.problems.append(f"{path}: base_path and graph_path of {name} must be paths")
        return
    graph = path.parent / base / graph_path
    try:
        is_served = graph.is_file() and llm_options(graph) is not None
    except PbtxtError as error:
        found.problems.append(f"{graph}: {error}")
        return
    if not is_served:
        found.notices.append(f"{name} ({path}): is not served; {_TEXT_ONLY}")
    elif graph.name != GRAPH_NAME:
        found.problems.append(f"graph_path={graph_path} ({path}): the file of {name} must be called {GRAPH_NAME}")
    else:
        for key in sorted(item.keys() - _READ_KEYS):
            _note(found, key, item[key], path)
        found.entries.append(ModelEntry(graph.parent, str(path), name))


def _note(found: OvmsModels, key: str, value: Any, path: Path) -> None:
    option = _FOREIGN_KEYS.get(
        key, ForeignOption(key, "options of a model stand in its graph.pbtxt or serving.properties")
    )
    text = value if isinstance(value, str) else json.dumps(value)
    if not option.is_harmless(text):
        found.notices.append(f"{key}={text[:80]} ({path}): no effect here; {option.reason}")
