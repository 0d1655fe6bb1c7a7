"""Reads a model's config.json so that nothing in it is passed over. Called when a model is loaded, on any thread.

A key that is not read might change what the model computes. So each key is read by the family, known to change nothing
here, or named in the refusal.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from dragoman.errors import ModelError as ModelError
from dragoman.files.model_texts import model_text
from dragoman.models.architectures import architecture_of_type

_MISSING = object()

# Keys that change no token of an answer: about training, files, other libraries' ways of running, tokens (the tokenizer's
# files say those), and heads that are not for generation.
_HARMLESS_KEYS = """
    _attn_implementation _attn_implementation_autoset _attn_implementation_internal _commit_hash _name_or_path
    _pad_token_id
    add_cross_attention architectures attention_dropout attention_probs_dropout_prob attn_implementation auto_map
    bad_words_ids begin_suppress_tokens bos_token_id cache_implementation chunk_size_feed_forward classifier_dropout
    cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample dtype early_stopping embd_pdrop
    embedding_dropout encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty finetuning_task
    forced_bos_token_id forced_eos_token_id gradient_checkpointing hidden_dropout hidden_dropout_prob id2label
    initializer_range is_decoder is_encoder_decoder label2id length_penalty max_length min_length model_type
    no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_attentions output_hidden_states
    output_scores pad_token_id prefix problem_type pruned_heads remove_invalid_values repetition_penalty resid_pdrop
    residual_dropout return_dict return_dict_in_generate sep_token_id summary_activation summary_first_dropout
    summary_proj_to_labels summary_type summary_use_proj suppress_tokens task_specific_params temperature
    tf_legacy_loss tie_encoder_decoder tokenizer_class top_k top_p torch_dtype torchscript transformers.js_config
    transformers_version typical_p unk_token_id unsloth_fixed unsloth_version use_bfloat16 use_cache
"""
_HARMLESS = frozenset(_HARMLESS_KEYS.split())

_MOST_NUMBER = 3.4e38  # float32 holds little more

# Bounds of counts that take work while config.json is read: several times what any model has.
_MOST = dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 1000)
_MOST |= dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_key_value_heads", "num_kv_heads"), 65_536)
_MOST |= dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4096)
_MOST["num_nextn_predict_layers"] = 100


def shown(value: Any, length: int = 80) -> str:
    try:
        text = json.dumps(value)
    except RecursionError:
        return "nested too deeply to be shown"
    return text if len(text) <= length else text[: length - 3] + "..."


def read_config(model: Path) -> dict[str, Any]:
    """config.json; with its architecture, if it names its type alone. Raises: ModelError."""
    found = read_json(model / "config.json")
    kind = found.get("model_type")
    if found.get("architectures") or not isinstance(kind, str) or (named := architecture_of_type(kind)) is None:
        return found
    return found | {"architectures": [named]}


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a model. Raises: ModelError if it is missing, too large or not an object."""
    try:
        text = model_text(path.parent, path.name)
        if text is None:
            raise ModelError(f"{path} does not exist; a model directory needs {path.name}")
        loaded = json.loads(text)
    except ModelError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise ModelError(f"{path} holds a {type(loaded).__name__}, expected a JSON object")
    return loaded


class Config:
    """The values of a config.json, or of an object in it. `name` begins the names of keys in messages.

    null is as good as no value. Every getter raises ModelError, naming the key, its value and what is allowed.
    """

    def __init__(self, raw: Mapping[str, Any], name: str = "config.json") -> None:
        self._raw = {key: value for key, value in raw.items() if value is not None}
        self._name = name
        self._read: set[str] = set()
        self._spelled: dict[str, str] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._raw

    def value(self, key: str, default: Any = None) -> Any:
        self._read.add(key)
        return self._raw.get(key, default)

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """An integer of at least `least`, and no absurdly large one; `default` None = there must be one."""
        most = _MOST.get(key, 2**31 - 1)
        wanted = f"an integer of at least {least}" + (f" and at most {most}" if key in _MOST else "")
        value = self._given(key, default, wanted)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.error(key, wanted)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._given(key, default, "a number")
        if not _is_number(value):
            raise self.error(key, "a number")
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float:
        value = self.number(key, default)
        if value <= 0:
            raise self.error(key, "a number above 0")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.value(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def choice(self, key: str, allowed: Collection[str], default: str | None = None) -> str:
        wanted = "one of " + ", ".join(allowed)
        value = self._given(key, default, wanted)
        if not isinstance(value, str) or value not in allowed:
            raise self.error(key, wanted)
        return value

    def choices(self, key: str, allowed: Collection[str], length: int) -> list[str] | None:
        value = self.value(key)
        if value is None:
            return None
        texts = [item for item in value if isinstance(item, str) and item in allowed] if isinstance(value, list) else []
        if len(texts) < length or len(texts) < len(value):
            raise self.error(key, f"a list of {length} of: {', '.join(allowed)}")
        return texts[:length]

    def numbers(self, key: str, length: int, *, least: float = -math.inf) -> tuple[float, ...]:
        wanted = f"a list of {length} numbers" + (f" of at least {least:g}" if math.isfinite(least) else "")
        value = self._given(key, None, wanted)
        is_list = isinstance(value, list) and len(value) == length
        if not is_list or not all(_is_number(item) and item >= least for item in value):
            raise self.error(key, wanted)
        return tuple(float(item) for item in value)

    def part(self, key: str) -> Config | None:
        value = self.value(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, "an object")
        return Config(value, f"{self._name} {key}")

    def expect(self, **values: Any) -> None:
        """Refuse every key that holds something else than the value given here, which is what is computed."""
        for key, expected in values.items():
            if self.value(key, expected) != expected:
                raise self.error(key, json.dumps(expected))

    def skip(self, *keys: str) -> None:
        self._read.update(keys)

    def skip_repeated(self, part: Mapping[str, Any]) -> None:
        self._read.update(key for key, value in part.items() if self._raw.get(key) == value)

    def rename(self, aliases: Mapping[str, str]) -> None:
        """Have keys read by other names; messages keep the file's spelling. Raises: ModelError if both differ."""
        for key, name in aliases.items():
            if key in self._raw:
                value = self._raw.pop(key)
                if self._raw.setdefault(name, value) != value:
                    raise self.error(name, f"{json.dumps(value)}, as in {key}")
                self._spelled[name] = key

    def assume(self, **values: Any) -> None:
        for key, value in values.items():
            self._raw.setdefault(key, value)

    def error(self, key: str, wanted: str) -> ModelError:
        return ModelError(
            f"{self._name} {self._spelled.get(key, key)} is {shown(self._raw.get(key))}, allowed: {wanted}"
        )

    def refuse_unread(self) -> None:
        """Raises: ModelError naming keys that were not read and may change something."""
        unknown = sorted(key for key in self._raw if key not in self._read and key not in _HARMLESS)
        if unknown:
            named = ", ".join(
                f"{shown(self._spelled.get(key, key))[1:-1]} ({shown(self._raw[key], 40)})" for key in unknown[:5]
            )
            raise ModelError(f"{self._name} has unknown keys for this architecture: {named}")

    def _given(self, key: str, default: Any, wanted: str) -> Any:
        value = self.value(key, default)
        if value is None:
            raise ModelError(f"{self._name} has no {key}, allowed: {wanted}")
        return value


def _is_number(value: Any) -> bool:
    """True for a number that a graph can hold, which computes in float32 at most."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MOST_NUMBER
