"""Reads the JSON files of a model about its text: special tokens and chat templates. Called at load time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dragoman.errors import ModelError
from dragoman.files.model_texts import model_text

_FIM_KEY = "fim_token_ids"  # our own key, in texts made from GGUF files

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class TextFiles:
    """The contents of the files. `special_tokens`: by the names that chat templates use; `chat_templates`: by name.

    `add_bos_token`: None = tokenizer.json alone decides. `fim_token_ids`: by the names of `FimTokens`, from a GGUF
    file.
    """

    special_tokens: Mapping[str, str]
    extra_special_tokens: tuple[str, ...]
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    chat_templates: Mapping[str, str]
    add_bos_token: bool | None
    fim_token_ids: Mapping[str, int] = field(default_factory=dict)


def read_text_files(model_dir: Path) -> TextFiles:
    """The facts of the model in `model_dir`; files may be missing. Raises: ValueError for a malformed file."""
    tokenizer_config = _read_json(model_dir, "tokenizer_config.json")
    special_map = _read_json(model_dir, "special_tokens_map.json")
    generation = _read_json(model_dir, "generation_config.json")
    text = _text_config(_read_json(model_dir, "config.json"))
    return TextFiles(
        special_tokens=_named_tokens(special_map) | _named_tokens(tokenizer_config),
        extra_special_tokens=tuple(dict.fromkeys(_extra_tokens(special_map) + _extra_tokens(tokenizer_config))),
        eos_token_ids=_token_ids(generation, "eos_token_id") or _token_ids(text, "eos_token_id"),
        bos_token_id=next(iter(_token_ids(generation, "bos_token_id") or _token_ids(text, "bos_token_id")), None),
        chat_templates=_chat_templates(model_dir, tokenizer_config),
        add_bos_token=_add_bos_token(tokenizer_config),
        fim_token_ids=tokenizer_config.get(_FIM_KEY, {}),
    )


def tokenizer_config(model_dir: Path) -> dict[str, Any]:
    return _read_json(model_dir, "tokenizer_config.json")


def _read_json(model_dir: Path, name: str) -> dict[str, Any]:
    path = model_dir / name
    try:
        text = model_text(model_dir, name)
        content = {} if text is None else json.loads(text)
    except ModelError:
        raise
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, it holds a {type(content).__name__}")
    return content


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The part about text; multimodal models keep it apart."""
    nested = config.get("text_config", config.get("llm_config"))
    if not isinstance(nested, dict):
        return config
    return nested | {key: value for key, value in config.items() if value is not None}


def _token_text(value: Any) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) and text else None


def _named_tokens(source: Mapping[str, Any]) -> dict[str, str]:
    found = {name: _token_text(source.get(name)) for name in _NAMED_TOKENS}
    return {name: text for name, text in found.items() if text is not None}


def _extra_tokens(source: Mapping[str, Any]) -> tuple[str, ...]:
    listed = source.get("additional_special_tokens") or source.get("extra_special_tokens") or []
    values = listed.values() if isinstance(listed, dict) else listed
    added = source.get("added_tokens_decoder") or {}
    special = [entry for entry in added.values() if isinstance(entry, dict) and entry.get("special")]
    return tuple(text for value in (*values, *special) if (text := _token_text(value)) is not None)


def _token_ids(source: Mapping[str, Any], name: str) -> tuple[int, ...]:
    value = source.get(name)
    values = value if isinstance(value, list) else [value]
    return tuple(token_id for token_id in values if isinstance(token_id, int))


def _add_bos_token(tokenizer_config: Mapping[str, Any]) -> bool | None:
    """The switch, if Hugging Face obeys it: an explicit yes, or a no of the classes that apply it to tokenizer.json."""
    value = tokenizer_config.get("add_bos_token")
    obeys = str(tokenizer_config.get("tokenizer_class", "")).startswith(("Llama", "Gemma", "Cohere", "CodeLlama"))
    return bool(value) if value is not None and (value or obeys) else None


def _chat_templates(model_dir: Path, tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name; separate files precede tokenizer_config.json."""
    templates: dict[str, str] = {}
    for source in (tokenizer_config, _read_json(model_dir, "chat_template.json")):
        template = source.get("chat_template")
        if isinstance(template, str):
            templates["default"] = template
        elif isinstance(template, list):
            templates |= {entry["name"]: entry["template"] for entry in template}
        elif isinstance(template, dict):
            templates |= template
    if (text := model_text(model_dir, "chat_template.jinja")) is not None:
        templates["default"] = text
    for path in sorted((model_dir / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    return templates
