"""Every family computes what transformers computes, on prompts that lie past every window and rotary boundary.

The cases are tests/models/families; scripts/record_family_references.py recorded them in float32. Unless everything is run,
only cases that together have all there is of attention, positions and states read the long prompt.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dragoman.engine.rolling.needs import block_bytes, memory_needs
from dragoman.engine.rolling.options import RollingOptions
from dragoman.kernels import presence
from dragoman.models import ModelOptions, load_model
from dragoman.models.architectures import FAMILIES
from dragoman.models.facts import AttentionFacts
from dragoman.models.families import find_family, read_model
from dragoman.models.loader import cache_layer, cache_ports
from tests.support.family_checkpoint import case_names, first_case_names, read_case, write_case, write_family_checkpoint
from tests.support.family_logits import PROMPTS, error_on_prompt
from tests.support.tiers import width

CAPPED = "gemma2"  # whose scores are capped
CUTS = (0, 300, 301, 365, 699, 700)  # a long chunk, single tokens, one that ends in the middle of a block


def test_the_list_names_the_families_by_their_architectures() -> None:
    for architecture in FAMILIES:
        family = find_family(architecture)
        assert not isinstance(family, type) or architecture in family.architectures()  # type: ignore[attr-defined]


def features(name: str) -> frozenset[str]:
    """What the case has of all that makes a token depend on others: it may be right for short prompts alone."""
    config = read_case(name)["config"]
    text_config = config.get("text_config") or config
    rule = text_config.get("rope_scaling") or text_config.get("rope_parameters") or {}
    found = {f"rule {rule.get('rope_type') or rule.get('type')}"}
    facts = read_model(config).facts
    for layer in facts.layers:
        mixer = layer.mixer
        found.add(type(mixer).__name__)
        if isinstance(mixer, AttentionFacts):
            kind = [word for word in ("window", "alibi_slopes", "softcap", "has_sinks") if getattr(mixer, word)]
            turned = mixer.rotary
            kind += [] if turned is None else [word for word in ("is_interleaved", "axes") if getattr(turned, word)]
            found.add(" ".join(["turned" if turned else "not turned", *kind]))
    if facts.long_context_from is not None:
        found.add("regimes")
    return frozenset(found)


@cache
def covering() -> list[str]:
    """Cases that together have all features, each the one that adds most."""
    by_name = {name: features(name) for name in case_names()}
    missing, chosen = set().union(*by_name.values()), []
    while missing:
        chosen.append(max(by_name, key=lambda name: len(by_name[name] & missing)))
        missing -= by_name[chosen[-1]]
    return chosen


LONG = frozenset(width(case_names(), covering()))
"""Cases that read the long prompt."""


def test_the_long_prompt_is_read_with_every_feature() -> None:
    assert len(LONG) >= 10
    assert set().union(*map(features, LONG)) == set().union(*map(features, case_names()))


VARIES = pytest.mark.varies("sums are of other kernels on other processors")
CASES = [pytest.param(name, marks=VARIES if name in covering() else ()) for name in case_names()]


@pytest.mark.parametrize("name", CASES)
def test_float32_logits_equal_the_reference(name: str, tmp_path: Path, record_property: Any) -> None:
    if name == CAPPED and presence.why_not():
        pytest.skip("only the library of kernels caps scores")
    kernels: Any = "own" if name == CAPPED else "auto"
    loaded = load_model(write_family_checkpoint(name, tmp_path), ModelOptions(weight_type="f32", kernels=kernels))
    lengths = [num_tokens for num_tokens in PROMPTS if num_tokens < 700 or name in LONG]
    errors = {str(num_tokens): error_on_prompt(loaded, name, num_tokens) for num_tokens in lengths}
    if name in LONG:
        errors["700 in chunks"] = error_on_prompt(loaded, name, 700, CUTS)
    record_property(f"{name}_f32_relative_error", max(errors.values()))
    assert max(errors.values()) < 1e-4, errors


def test_layers_that_share_keys_and_values_have_one_cache(tmp_path: Path) -> None:
    for kv_type in ("f32", "u8"):
        loaded = load_model(write_family_checkpoint("gemma4", tmp_path), ModelOptions("f32", kv_type=kv_type))
        assert {cache_layer(port) for port in cache_ports(loaded.compiled)} == {0, 1, 2}
        assert loaded.block_bytes == block_bytes(loaded.facts, kv_type, attends=loaded.profile.attends)
    if not presence.why_not():
        loaded = load_model(
            write_family_checkpoint("gemma4", tmp_path), ModelOptions("int8", kv_type="u8", kernels="own")
        )
        assert {cache_layer(port) for port in cache_ports(loaded.compiled)} == {0, 1, 2}
        assert loaded.block_bytes == block_bytes(loaded.facts, "u8", attends=True)
        assert error_on_prompt(loaded, "gemma4", 90) < 0.5


def test_a_table_for_each_layer_is_counted_as_it_is_stored(tmp_path: Path) -> None:
    case = read_case("gemma3n")
    options = [RollingOptions(dtype="f32"), RollingOptions(dtype="int8", kernels="openvino")]
    needs = [memory_needs(write_case("gemma3n", case, tmp_path), one).weights for one in options]
    case["config"]["vocab_size_per_layer_input"] = num_rows = 2000
    case["tensors"]["model.embed_tokens_per_layer.weight"] = [num_rows, num_columns := 5 * 16]
    more = (num_rows - 256) * num_columns
    for before, one, num_bytes in zip(needs, options, (4, 2), strict=True):
        found = memory_needs(write_case("gemma3n", case, tmp_path), one).weights - before
        assert more * num_bytes <= found < 1.1 * more * num_bytes


# Experts, and products that are joined or cut in ways of their own.
FEW_COMPRESSED = ["deepseek_v2", "gpt2", "phi3", "qwen3_5"]


@pytest.mark.parametrize("name", width(first_case_names(), FEW_COMPRESSED))
def test_compressed_weights_stay_close_to_the_reference(name: str, tmp_path: Path) -> None:
    """In int4, which is int8 where columns are not whole groups; docs/models.md tells both of every case."""
    loaded = load_model(write_family_checkpoint(name, tmp_path), ModelOptions(weight_type="int4"))
    assert error_on_prompt(loaded, name, 90) < 1.0
