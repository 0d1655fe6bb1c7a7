"""Exported graphs compute what transformers, or they themselves with states, compute; what cannot be driven is refused.

The exports are tests/models/exported; scripts/record_ir_references.py recorded them. What is to be computed was recorded
with the cases of tests/models/families that they were made of.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.needs import memory_needs
from dragoman.engine.rolling.options import RollingOptions
from dragoman.kernels import presence
from dragoman.models import LoadedModel, ModelError, ModelOptions, load_model
from dragoman.models.fingerprint import model_fingerprint
from dragoman.models.ir.read import read_ir
from dragoman.tokenizer.hf_tokenizer import load_tokenizer
from tests.support.exported_model import case_of, exported_names, write_exported
from tests.support.family_checkpoint import read_case, write_family_checkpoint
from tests.support.family_logits import PROMPTS, error_on_prompt
from tests.support.forward import forward_batch
from tests.support.tiers import width

NOT_EXACT = {"gpt_oss": "its experts have other limits", "mpt": "is refused"}
EXACT = [name for name in exported_names() if "-" not in name and name not in NOT_EXACT]
BY_THEMSELVES = ["gpt_oss", *(name for name in exported_names() if "-" in name)]
CUTS = (0, 300, 301, 365, 699, 700)
F32 = ModelOptions(weight_type="f32")
SHORT = {"phi3_128k": (5, 90)}  # prompts within what the graph can tell apart


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Directories by the names of their exports, written when they are first asked for."""
    found: dict[str, Path] = {}

    def directory(name: str) -> Path:
        if name not in found:
            found[name] = write_exported(name, tmp_path_factory.mktemp(name))
        return found[name]

    return directory


@pytest.mark.varies("which kernels compute it depends on the processor")
@pytest.mark.parametrize("name", width(EXACT, ["gemma2", "gemma3_text", "granite4_dense", "lfm2", "phi3_128k"]))
def test_float32_logits_equal_those_of_transformers(name: str, exports: Callable[[str], Path]) -> None:
    if name == "gemma2" and presence.why_not():
        pytest.skip("only the library of kernels caps scores")
    loaded = load_model(exports(name), replace(F32, kernels="own") if name == "gemma2" else F32)
    case, lengths = case_of(name), SHORT.get(name, PROMPTS)
    errors = {str(length): error_on_prompt(loaded, case, length) for length in lengths}
    if lengths == PROMPTS:
        errors["700 in chunks"] = error_on_prompt(loaded, case, 700, CUTS)
    assert max(errors.values()) < 1e-4, errors


@pytest.mark.parametrize("name", width(BY_THEMSELVES, ["granite4_hybrid-int8", "qwen3-int4"]))
def test_other_exports_compute_what_the_graph_computes_with_its_states(
    name: str, exports: Callable[[str], Path]
) -> None:
    tokens = np.random.RandomState(3).randint(0, 300, 150)
    expected = stateful_logits(exports(name), tokens)
    loaded = load_model(exports(name), F32)
    for cuts in ((0, 150), (0, 70, 71, 128, 150)):
        found = np.concatenate(chunked_logits(loaded, tokens, cuts))
        assert np.max(np.abs(found - expected)) < 1e-4 * np.max(np.abs(expected))


def stateful_logits(directory: Path, tokens: Any) -> Any:
    """Of every token, as the graph was exported: one sequence, whole."""
    graph = ov.Core().read_model(directory / "openvino_model.xml")
    settings = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    request = ov.Core().compile_model(graph, "CPU", settings).create_infer_request()
    count = len(tokens)
    values = {
        "input_ids": tokens[None].astype(np.int64),
        "attention_mask": np.ones((1, count), dtype=np.int64),
        "position_ids": np.arange(count, dtype=np.int64)[None],
        "beam_idx": np.zeros(1, dtype=np.int32),
    }
    request.infer({name: values[name] for name in (port.get_any_name() for port in graph.inputs)})
    return request.get_output_tensor(0).data[0].copy()


def chunked_logits(loaded: LoadedModel, tokens: Any, cuts: tuple[int, ...]) -> list[Any]:
    runner = OpenVinoRunner(loaded, num_blocks=8)
    found = []
    for begin, end in pairwise(cuts):
        batch = forward_batch([(tokens[begin:end].tolist(), begin, range(8))], logit_rows=range(end - begin))
        found.append(runner.forward(batch).copy())
    return found


def test_what_the_model_is_follows_from_the_graph(exports: Callable[[str], Path]) -> None:
    facts = read_ir(exports("gemma3_text"), ModelOptions()).facts
    config = read_case("gemma3_text")["config"]
    assert facts.architecture == "Gemma3ForCausalLM"
    assert (facts.vocab_size, facts.hidden_size, facts.max_position) == (320, 96, 1024)
    assert [layer.attention.window for layer in facts.layers if layer.attention] == [64, 64, 0, 64]
    assert {(a.num_heads, a.num_kv_heads, a.head_size) for a in facts.attention_layers.values()} == {(4, 1, 32)}
    assert [kind.window for kind in facts.cache_kinds] == [0, config["sliding_window"]]
    assert facts.departures == ()


def test_a_model_that_sees_is_served_for_its_texts_alone(exports: Callable[[str], Path]) -> None:
    loaded = load_model(exports("llava"), F32)
    assert loaded.tower is None
    assert loaded.facts.departures == ("pictures are refused: the exported graphs that see do not run here",)


def test_sinks_are_found(exports: Callable[[str], Path]) -> None:
    facts = read_ir(exports("gpt_oss"), ModelOptions()).facts
    assert all(attention.has_sinks for attention in facts.attention_layers.values())


@pytest.mark.parametrize(("name", "stored", "group"), [("qwen3-int4", "int4", 32), ("qwen3-int8", "int8", 128)])
def test_activations_are_quantised_in_groups_as_small_as_the_weights(
    name: str, stored: str, group: int, exports: Callable[[str], Path]
) -> None:
    loaded = read_ir(exports(name), ModelOptions())
    assert (loaded.options.weight_type, loaded.profile.activation_group) == (stored, group)
    needs = memory_needs(exports(name), RollingOptions())
    assert needs.weights >= (exports(name) / "openvino_model.bin").stat().st_size


def test_a_type_that_the_weights_do_not_have_is_told(exports: Callable[[str], Path]) -> None:
    asked = read_ir(exports("qwen3-int8"), ModelOptions("int4", asks_for_type=True))
    assert asked.facts.departures == ("dtype int4 has no effect: the exported weights are stored as int8",)
    assert read_ir(exports("qwen3-int8"), ModelOptions("int8", asks_for_type=True)).facts.departures == ()
    assert read_ir(exports("qwen3-int8"), ModelOptions("f32", asks_for_type=True)).profile.is_exact


def test_scores_that_are_not_capped_are_told(exports: Callable[[str], Path]) -> None:
    loaded = read_ir(exports("gemma2"), replace(F32, kernels="openvino"))
    assert loaded.facts.departures == ("attention scores are not capped at 5; kernels own cap them",)


def test_the_context_ends_where_a_step_would_mix_rotary_factors(exports: Callable[[str], Path], tmp_path: Path) -> None:
    directory = Path(shutil.copytree(exports("phi3_128k"), tmp_path / "copied"))
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    original = config["original_max_position_embeddings"]
    (directory / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 1024}), encoding="utf-8")
    facts = read_ir(directory, ModelOptions()).facts
    assert facts.max_position == original
    assert facts.departures[0].startswith(f"the context is {original} tokens, not 1024: ")


def test_states_are_caches_of_their_own(exports: Callable[[str], Path]) -> None:
    loaded = load_model(exports("lfm2"), ModelOptions())
    assert {layer.state_shape for layer in loaded.facts.state_layers.values()} == {(64, 3)}
    assert [kind.has_states for kind in loaded.facts.cache_kinds] == [False, True]
    assert loaded.block_bytes[1] == 3 * 64 * 3 * 4
    assert loaded.profile.inference_type == "f32"


def test_the_places_that_older_exports_ask_for_are_the_positions(
    exports: Callable[[str], Path], tmp_path: Path
) -> None:
    def ask_for_places(graph: Any) -> None:
        counted = next(node for node in graph.get_ops() if node.get_friendly_name().endswith("model/aten::add/Add"))
        assert counted.get_output_element_type(0) == ov.Type.i64
        places = ops.parameter(ov.PartialShape([-1]), ov.Type.i64, name="cache_position")
        places.output(0).set_names({"cache_position"})
        for target in counted.output(0).get_target_inputs():
            target.replace_source_output(places.output(0))
        graph.add_parameters([places])

    directory = Path(shutil.copytree(exports("lfm2"), tmp_path / "copied"))
    loaded = load_model(changed(directory, ask_for_places), F32)
    assert error_on_prompt(loaded, "lfm2", 90, (0, 40, 41, 90)) < 1e-4


def test_an_export_that_lost_what_tells_places_is_refused(exports: Callable[[str], Path]) -> None:
    assert "does not read its input position_ids" in refusal(exports("mpt"))


def test_a_graph_is_kept_and_mapped_at_the_next_start(exports: Callable[[str], Path], tmp_path: Path) -> None:
    options = ModelOptions(cache_dir=tmp_path)
    built, mapped = (load_model(exports("gemma3_text"), options) for _ in range(2))
    assert (built.from_cache, mapped.from_cache) == (False, True)
    tokens = np.arange(3, 90)
    [expected], [found] = (chunked_logits(loaded, tokens, (0, 87)) for loaded in (built, mapped))
    assert np.array_equal(expected, found)


def test_experts_are_compiled_at_every_start(exports: Callable[[str], Path], tmp_path: Path) -> None:
    load_model(exports("gpt_oss"), ModelOptions(cache_dir=tmp_path))
    assert list(tmp_path.iterdir()) == []


# --- directories that are not as they should be -----------------------------------------------------------------------


@pytest.fixture
def copied(exports: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(exports("qwen3"), tmp_path / "copied"))


def changed(directory: Path, change: Callable[[Any], None]) -> Path:
    """The directory with its graph changed."""
    path = directory / "openvino_model.xml"
    graph = ov.Core().read_model(
        path.read_text(encoding="utf-8"), ov.Tensor(np.fromfile(path.with_suffix(".bin"), np.uint8))
    )
    change(graph)
    graph.validate_nodes_and_infer_types()
    ov.save_model(graph, path, compress_to_fp16=False)
    return directory


def refusal(directory: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(directory, ModelOptions())
    return str(caught.value)


def test_an_input_that_is_not_known_is_refused_by_its_name(copied: Path) -> None:
    def add_input(graph: Any) -> None:
        added = ops.parameter(ov.PartialShape([-1, -1]), ov.Type.i64, name="token_type_ids")
        added.output(0).set_names({"token_type_ids"})
        graph.add_parameters([added])

    assert "has the input token_type_ids, which is unknown; known: input_ids, " in refusal(changed(copied, add_input))


def test_positions_that_nobody_reads_are_refused(copied: Path) -> None:
    def ignore_positions(graph: Any) -> None:
        positions = next(node for node in graph.get_parameters() if "position_ids" in node.output(0).get_names())
        ids = next(node for node in graph.get_parameters() if "input_ids" in node.output(0).get_names())
        for target in positions.output(0).get_target_inputs():
            target.replace_source_output(ids.output(0))

    assert "does not read its input position_ids" in refusal(changed(copied, ignore_positions))


def test_a_graph_without_a_cache_is_refused(copied: Path) -> None:
    x = ops.parameter(ov.PartialShape([-1, -1]), ov.Type.f32, name="input_ids")
    ov.save_model(ov.Model([ops.relu(x)], [x], "small"), copied / "openvino_model.xml", compress_to_fp16=False)
    assert "has no states: export it with its cache" in refusal(copied)


@pytest.mark.parametrize(
    ("break_it", "problem"),
    [
        (lambda path: (path / "openvino_model.bin").unlink(), "openvino_model.bin does not exist"),
        (lambda path: (path / "openvino_model.xml").write_text("<net"), "openvino_model.xml cannot be read: "),
        (lambda path: (path / "openvino_model.bin").write_bytes(b"short"), "openvino_model.xml cannot be read: "),
        (lambda path: (path / "config.json").unlink(), "config.json does not exist"),
        (lambda path: (path / "config.json").write_text("{}"), "config.json does not give the context length"),
        (lambda path: (path / "openvino_config.json").write_text("[]"), "openvino_config.json holds a list"),
        (
            lambda path: (path / "openvino_model.xml").rename(path / "openvino_language_model.xml"),
            "openvino_text_embeddings_model.xml does not exist; openvino_language_model.xml needs it",
        ),
    ],
)
def test_what_is_missing_or_broken_is_named(break_it: Callable[[Path], object], problem: str, copied: Path) -> None:
    break_it(copied)
    assert problem in refusal(copied)


def test_keys_of_the_export_that_are_not_known_are_told(copied: Path) -> None:
    path = copied / "openvino_config.json"
    content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    path.write_text(json.dumps({**content, "colour": 1, "DYNAMIC_QUANTIZATION_GROUP_SIZE": 64}), encoding="utf-8")
    departures = read_ir(copied, ModelOptions()).facts.departures
    assert departures == (
        "openvino_config.json colour has no effect: it is not known",
        "openvino_config.json DYNAMIC_QUANTIZATION_GROUP_SIZE has no effect: groups follow from kernels and weights",
    )


def test_a_checkpoint_beside_a_graph_is_what_is_served(tmp_path: Path) -> None:
    directory = write_family_checkpoint("qwen3", tmp_path)
    (directory / "openvino_model.xml").touch()
    loaded = load_model(directory, ModelOptions())
    assert loaded.facts.departures == (
        "the exported OpenVINO graph is not read: the directory holds a checkpoint, too",
    )
    assert loaded.facts.attention_layers[0].rotary is not None


def test_a_tokenizer_that_is_only_there_as_a_graph_is_named(copied: Path) -> None:
    (copied / "openvino_tokenizer.xml").touch()
    with pytest.raises(
        ValueError, match=r"tokenizer.json is missing: .*\(openvino_tokenizer.xml is not read: bring it"
    ):
        load_tokenizer(copied)


def test_another_graph_has_another_fingerprint(copied: Path) -> None:
    before = model_fingerprint(copied)
    with (copied / "openvino_model.bin").open("ab") as file:
        file.write(b"\0")
    assert model_fingerprint(copied) != before
