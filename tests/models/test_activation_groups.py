"""Activations are quantised in groups as the weights allow, or as somebody asks who knows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dragoman.config.resolve import Config
from dragoman.config.several import resolve_all
from dragoman.config.sources import Given
from dragoman.engine.rolling.factory import RollingFactory
from dragoman.engine.rolling.needs import memory_needs
from dragoman.engine.rolling.options import RollingOptions
from dragoman.host.loading import engine_setup
from dragoman.kernels.presence import HELD
from dragoman.models import LoadedModel, ModelError, ModelOptions, load_model
from dragoman.models.profile import kernel_profile
from tests.config.test_ovms import write_graph
from tests.support.exported_model import write_exported
from tests.support.packed_layouts import LAYOUTS, LLAMA
from tests.support.packers import write_pair
from tests.support.random_checkpoint import write_checkpoint
from tests.support.tiers import width

pytestmark = pytest.mark.usefixtures("plugin_kernels")
PROPERTY = "DYNAMIC_QUANTIZATION_GROUP_SIZE"


@pytest.fixture
def plugin_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose activations these are; dragoman's own have groups of one size."""
    monkeypatch.setenv(HELD, "none")


def compiled_group(loaded: LoadedModel) -> int:
    """What the runtime goes by."""
    return int(loaded.compiled.get_property(PROPERTY))


def packed_checkpoint(directory: Path) -> Path:
    """Its weights are in groups of 32."""
    return write_pair(write_checkpoint(LLAMA, directory / "source"), directory, *LAYOUTS["awq"]).packed


def served(directory: Path, *more: Given) -> Config:
    line = (Given("MODEL_DIR", "option.model_id", str(directory), "command line"), *more)
    [config] = resolve_all(line, {}, directory / "demo", directory / "none").models
    return config


ASKED = [("auto", 128), ("0", 0), ("32", 32), ("64", 64), ("<=64", 64), ("128", 128)]


@pytest.mark.parametrize(("asked", "group"), width(ASKED, [("auto", 128), ("0", 0), ("<=64", 64)]))
def test_the_graph_is_compiled_with_the_group_that_is_asked_for(asked: str, group: int, tmp_path: Path) -> None:
    options = RollingOptions(activation_group=asked).model_options
    loaded = load_model(write_checkpoint(LLAMA, tmp_path), options)
    assert compiled_group(loaded) == group
    assert loaded.facts.departures == ()


@pytest.mark.parametrize(
    ("group", "automatic"), [(16, 16), (32, 32), (48, 48), (96, 96), (192, 96), (256, 128), (2880, 96)]
)
def test_groups_of_activations_fill_those_of_weights(group: int, automatic: int) -> None:
    """With a rest kernels do not quantise activations, and compute something else where groups are no power of two."""
    assert kernel_profile(ModelOptions(), smallest_group=group).activation_group == automatic


@pytest.mark.parametrize(
    ("weight_type", "group", "asked", "problem"),
    [
        ("int8", 32, 64, "activation_group 64 does not go with weights in groups of 32; allowed: 0, 32"),
        ("int8", 192, 0, "activation_group 0 does not go with weights in groups of 192; allowed: 32, 64, 96"),
        ("int4", None, 96, "activation_group 96 does not go with int4 weights; allowed: 0, 32, 64, 128"),
        ("f32", 32, 32, "activation_group 32 does not go with f32 weights; allowed: 0"),
    ],
)
def test_a_group_that_does_not_go_with_the_weights_is_refused(
    weight_type: str, group: int | None, asked: int, problem: str
) -> None:
    options = ModelOptions(weight_type, activation_group=asked)  # type: ignore[arg-type]  # is one
    with pytest.raises(ModelError) as caught:
        kernel_profile(options, smallest_group=group)
    assert str(caught.value) == problem


def test_it_is_refused_before_weights_are_read(tmp_path: Path) -> None:
    packed, options = packed_checkpoint(tmp_path), RollingOptions(activation_group="64")
    for load in (lambda: memory_needs(packed, options), lambda: load_model(packed, options.model_options)):
        with pytest.raises(ModelError, match="activation_group 64 does not go with weights in groups of 32"):
            load()


def test_kept_graphs_of_different_groups_are_not_mixed(tmp_path: Path) -> None:
    directory = write_checkpoint(LLAMA, tmp_path / "model")
    for group, from_cache in ((64, False), (32, False), (64, True), (None, False), (128, True), (0, False)):
        loaded = load_model(directory, ModelOptions(activation_group=group, cache_dir=tmp_path / "kept"))
        assert loaded.from_cache == from_cache
        assert compiled_group(loaded) == (128 if group is None else group)


@pytest.mark.parametrize(("asked", "group"), [("64", 64), ("4294967295", 128), ("0", 0)])
def test_what_a_graph_of_ovms_asks_for_acts(asked: str, group: int, tmp_path: Path) -> None:
    directory = write_checkpoint(LLAMA, tmp_path / "model")
    write_graph(directory, f"""models_path: "./" plugin_config: '{{"{PROPERTY}": "{asked}"}}'""")
    loaded = RollingFactory().load(engine_setup(served(directory))).model
    assert compiled_group(loaded) == group
    assert loaded.facts.departures == ()


def test_what_it_asks_beyond_the_weights_is_bounded_and_told(tmp_path: Path) -> None:
    directory = packed_checkpoint(tmp_path)
    write_graph(directory, f"""models_path: "./" plugin_config: '{{"{PROPERTY}": "64"}}'""")
    loaded = RollingFactory().load(engine_setup(served(directory))).model
    assert compiled_group(loaded) == 32
    assert loaded.facts.departures == (
        "activations are quantised in groups of 32, which the weights allow, instead of 64 as the model's files ask",
    )
    given = Given("--activation-group", "option.activation_group", "0", "command line")
    assert compiled_group(RollingFactory().load(engine_setup(served(directory, given))).model) == 0


def test_f32_goes_before_what_files_ask() -> None:
    loaded = kernel_profile(ModelOptions("f32", activation_group=64, bounds_activation_group=True))
    assert loaded.is_exact
    assert loaded.activation_group == 0


@pytest.mark.parametrize(
    ("name", "value", "group", "departures"),
    [
        ("qwen3-int8", "64", 64, ()),
        ("qwen3-int8", 0, 0, ()),
        (
            "qwen3-int4",
            64,
            32,
            (
                "activations are quantised in groups of 32, which the weights allow, instead of 64 as the model's files ask",
            ),
        ),
        (
            "qwen3-int8",
            "small",
            128,
            (
                f'openvino_config.json {PROPERTY} of "small" has no effect: groups have multiples of 32 columns up to 128, '
                "and 0 is none",
            ),
        ),
    ],
)
def test_what_an_export_asks_for_acts(
    name: str, value: str | int, group: int, departures: tuple[str, ...], tmp_path: Path
) -> None:
    directory = write_exported(name, tmp_path)
    (directory / "openvino_config.json").write_text(json.dumps({"dtype": "int8", PROPERTY: value}), encoding="utf-8")
    loaded = load_model(directory, ModelOptions())
    assert compiled_group(loaded) == group
    assert loaded.facts.departures == departures


def test_the_option_goes_before_what_an_export_asks_for(tmp_path: Path) -> None:
    directory = write_exported("qwen3-int8", tmp_path)
    (directory / "openvino_config.json").write_text(json.dumps({PROPERTY: 64}), encoding="utf-8")
    assert compiled_group(load_model(directory, ModelOptions(activation_group=32))) == 32
