"""Reads OpenVINO Model Server's graph.pbtxt as options of this server.

Source: LLMCalculatorOptions of OVMS 2026.3 (src/llm/llm_calculator.proto) and of the releases before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

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
_TOOL_PARSERS = {
    "hermes3": "hermes", "llama3": "llama3_json", "phi4": "phi4_mini_json", "mistral": "mistral", "gptoss": "gpt_oss",
    "qwen3coder": "qwen3_coder", "lfm2": "lfm2", "devstral": "mistral_args",
}  # fmt: skip
_REASONING_PARSERS = {"qwen3": "think", "gptoss": "gpt_oss"}
_CACHE_TYPES = {"u8": "u8", "i8": "u8", "f16": "auto", "bf16": "auto", "f32": "f32"}

_FOREIGN, _PROPERTIES = foreign_in("ovms_graph"), foreign_in("ovms_plugin")


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
    for one in options.fields:
        reader.read(one)
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
            for one in options.fields:
                name = one.name.strip("[]").rpartition("/")[2].removesuffix(".ext")
                if name == _OPTIONS_TYPE and isinstance(one.value, Message):
                    return one.value
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
        self._special: Mapping[str, Callable[[str, str, str], None]] = {
            "cache_size": self._cache_size,
            "draft_models_path": self._draft,
            "draft_eagle3_mode": self._eagle,
            "tool_parser": self._tool_parser,
            "reasoning_parser": self._reasoning_parser,
            "response_parser": self._response_parser,
            "plugin_config": self._plugin_config,
        }

    def read(self, one: Field) -> None:
        source = f"{self._path} line {one.line}"
        text = one.value if isinstance(one.value, str) else "{...}"
        if one.name in self._special and isinstance(one.value, str):
            self._special[one.name](one.name, text, source)
        elif one.name in _SAME and isinstance(one.value, str):
            self._give(one.name, _SAME[one.name], text, source)
        elif one.name in _FOREIGN:
            self._note(_FOREIGN[one.name], one.name, text, source)
        else:
            self._report(one.name, text, source, "it is unknown")

    def _give(self, name: str, key: str, text: str, source: str) -> None:
        if text:
            self._found.givens.append(Given(name, key, text, source))

    def _note(self, option: ForeignOption, name: str, text: str, source: str) -> None:
        if not option.is_harmless(text):
            self._report(name, text, source, option.reason)

    def _report(self, name: str, text: str, source: str, reason: str) -> None:
        self._found.notices.append(f"{name}={text} ({source}): no effect here; {reason}")

    def _cache_size(self, name: str, text: str, source: str) -> None:
        if text != "0":  # as large as memory allows
            self._give(name, "option.kv_cache_gb", text, source)

    def _draft(self, name: str, text: str, source: str) -> None:
        if text:
            self._give(name, "option.draft_model", str(self._directory / text), source)

    def _eagle(self, name: str, text: str, source: str) -> None:
        if text.lower() not in OFF:
            self._found.problems.append(f"{name}={text} ({source}): draft models of this kind do not run here")

    def _tool_parser(self, name: str, text: str, source: str) -> None:
        self._parser(name, "option.tool_call_parser", _TOOL_PARSERS, (text, source))

    def _reasoning_parser(self, name: str, text: str, source: str) -> None:
        self._parser(name, "option.reasoning_parser", _REASONING_PARSERS, (text, source))

    def _response_parser(self, name: str, text: str, source: str) -> None:
        self._tool_parser(name, text, source)
        if text in _REASONING_PARSERS:
            self._reasoning_parser(name, text, source)

    def _parser(self, name: str, key: str, known: Mapping[str, str], written: tuple[str, str]) -> None:
        text, source = written
        if text in known:
            self._give(name, key, known[text], source)
        elif text:
            self._report(name, text, source, f"the chat template tells it, or {key}")

    def _plugin_config(self, name: str, text: str, source: str) -> None:
        try:
            properties = json.loads(text) if text.strip() else {}
        except (ValueError, RecursionError):
            properties = None
        if not isinstance(properties, dict):
            self._found.problems.append(f"{name}={text} ({source}): must be a JSON object")
            return
        for key, value in properties.items():
            self._property(key, value if isinstance(value, str) else json.dumps(value), source)

    def _property(self, name: str, text: str, source: str) -> None:
        where = f"{source}, plugin_config"
        if name in ("KV_CACHE_PRECISION", "KEY_CACHE_PRECISION", "VALUE_CACHE_PRECISION"):
            self._cache_type(name, text, where)
        elif name == "INFERENCE_NUM_THREADS":
            self._give(name, "option.threads", text, where)
        elif name == "CACHE_DIR":
            self._give(name, "option.cache_dir", text, where)
        elif name == "prompt_lookup":
            self._give(name, "option.prompt_lookup", text, where)
        elif (name, text.lower()) == ("INFERENCE_PRECISION_HINT", "f32"):
            self._give(name, "option.dtype", "f32", where)
        else:
            self._note(_PROPERTIES.get(name, ForeignOption(name, REASONS["runtime"])), name, text, where)

    def _cache_type(self, name: str, text: str, source: str) -> None:
        known = _CACHE_TYPES.get(text.lower())
        if known is None:
            self._report(name, text, source, "the smallest type of the cache is u8, see option.kv_dtype")
        self._give(name, "option.kv_dtype", known or "u8", source)
