"""Reads the JSON files beside a model's weights that say how its text works.

Does: merge tokenizer_config.json, special_tokens_map.json, generation_config.json and config.json into facts about
special tokens and chat templates. Does not: interpret templates or tokens. Called at load time by `hf_tokenizer`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dragoman.errors import ModelError
from dragoman.files.model_texts import model_text

_FIM_KEY = "fim_token_ids"  # of the server's own: what is made of a GGUF file has it

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class TextFiles:
    """The contents of the files. `special_tokens`: by the names that chat templates use; `extra_special_tokens` have no
    name.

    `eos_token_ids`, `bos_token_id`: from the generation config, else from the model's config. `chat_templates`: by name.
    `add_bos_token`: whether prompts begin with the bos token; None = tokenizer.json alone decides. `fim_token_ids`: the
    marks of fill-in-the-middle prompts by the names of `FimTokens`, where the file says which they are, as GGUF does.
    """

    special_tokens: Mapping[str, str]
    extra_special_tokens: tuple[str, ...]
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    chat_templates: Mapping[str, str]
    add_bos_token: bool | None
    fim_token_ids: Mapping[str, int] = field(default_factory=dict)


def read_text_files(model_dir: Path) -> TextFiles:
    """The facts of the model in `model_dir`; files that are not there say nothing.

    Raises: ValueError naming a file that is not a JSON object.
    """
    tokenizer_config = _read_json(model_dir, "tokenizer_config.json")
    special_map = _read_json(model_dir, "special_tokens_map.json")
    generation = _read_json(model_dir, "generation_config.json")
    text = _text_config(_read_json(model_dir, "config.json"))
    return TextFiles(
        special_tokens=_named_tokens(special_map) | _named_tokens(tokenizer_config),
        extra_special_tokens=_extra_tokens(special_map) + _extra_tokens(tokenizer_config),
        eos_token_ids=_token_ids(generation, "eos_token_id") or _token_ids(text, "eos_token_id"),
        bos_token_id=next(iter(_token_ids(generation, "bos_token_id") or _token_ids(text, "bos_token_id")), None),
        chat_templates=_chat_templates(model_dir, tokenizer_config),
        add_bos_token=_add_bos_token(tokenizer_config),
        fim_token_ids=tokenizer_config.get(_FIM_KEY, {}),
    )


def tokenizer_config(model_dir: Path) -> dict[str, Any]:
    """The contents of tokenizer_config.json. Raises: ValueError if it is not a JSON object."""
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
    """The part about text; models that also see images keep it apart."""
    nested = config.get("text_config", config.get("llm_config"))
    if not isinstance(nested, dict):
        return config
    return nested | {key: value for key, value in config.items() if value is not None}


def _token_text(value: Any) -> str | None:
    """A token is written as a string or as an object that holds it."""
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
    """An id, a list of ids, or nothing."""
    value = source.get(name)
    values = value if isinstance(value, list) else [value]
    return tuple(token_id for token_id in values if isinstance(token_id, int))


def _add_bos_token(tokenizer_config: Mapping[str, Any]) -> bool | None:
    """The switch, where Hugging Face obeys it: an explicit yes, or a no of the classes that apply it to tokenizer.json."""
    value = tokenizer_config.get("add_bos_token")
    obeys = str(tokenizer_config.get("tokenizer_class", "")).startswith(("Llama", "Gemma", "Cohere", "CodeLlama"))
    return bool(value) if value is not None and (value or obeys) else None


def _chat_templates(model_dir: Path, tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name; a file of its own goes before tokenizer_config.json."""
    templates: dict[str, str] = {}
    for source in (tokenizer_config, _read_json(model_dir, "chat_template.json")):
        given = source.get("chat_template")
        if isinstance(given, str):
            templates["default"] = given
        elif isinstance(given, list):
            templates |= {entry["name"]: entry["template"] for entry in given}
        elif isinstance(given, dict):
            templates |= given
    if (text := model_text(model_dir, "chat_template.jinja")) is not None:
        templates["default"] = text
    for path in sorted((model_dir / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    return templates
