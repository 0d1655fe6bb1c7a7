"""A file mmproj beside a GGUF model makes it see what its Hugging Face checkpoint sees; others are told, by their names."""

from __future__ import annotations

import base64
import io
import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from dragoman.cli.arguments import read_arguments
from dragoman.config.resolve import ConfigError, resolve
from dragoman.host.loading import ModelLoad
from dragoman.llm import LLM
from dragoman.models import LoadedModel, ModelError, ModelOptions, load_model
from dragoman.models.fingerprint import model_fingerprint, weight_files
from dragoman.models.vision.described import is_described
from tests.support.family_logits import logits_of
from tests.support.gguf_tokenizer import tokenizer_metadata
from tests.support.mmproj_writer import write_both
from tests.support.tables import Rows
from tests.support.tiers import width
from tests.support.vision_checkpoint import draw, read_vision_case, write_vision_case
from tests.support.vision_model import embedded

EXACT = ModelOptions("f32", num_threads=1)
OF_TEXTS = {"query_pre_attn_scalar": 32, "sliding_window_pattern": 6}  # what llama.cpp takes for granted of Gemma 3
CASES = (
    *("gemma3", "idefics3", "internvl", "internvl_norms", "lfm2_vl", "llava", "ministral3", "mistral3"),
    *("qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe", "smolvlm"),
)
FAST = ["gemma3", "internvl", "lfm2_vl", "ministral3", "qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_vl_moe"]
OF_MINISTRAL = {
    **{"rope_type": "yarn", "rope_theta": 1_000_000.0, "factor": 8.0, "original_max_position_embeddings": 128},
    **{"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
}
OF_LFM2 = (
    "min_image_tokens max_image_tokens max_tiles min_tiles tile_size size"  # what llama.cpp takes for granted of it
)


def case_of(name: str) -> dict[str, Any]:
    case = read_vision_case("mistral3" if name == "ministral3" else name)
    if name == "gemma3":
        case["config"]["text_config"] |= OF_TEXTS
    if name == "llava":
        case["preprocessor"] |= {"image_processor_type": "LlavaImageProcessor", "do_pad": True}
    if name == "internvl_norms":  # no file has a norm behind the last layer
        case["config"]["vision_config"]["use_mean_pooling"] = True
        case["tensors"] = {key: shape for key, shape in case["tensors"].items() if "vision_tower.layernorm" not in key}
    if name.startswith("internvl"):  # the converter leaves out what only positions behind the context's end change
        case["config"]["text_config"].pop("rope_scaling", None)
    if name == "lfm2_vl":
        _take_for_granted(case)
    if name == "ministral3":
        case["config"]["text_config"] |= {"model_type": "ministral3", "rope_parameters": OF_MINISTRAL}
    if name in ("ministral3", "mistral3"):  # as in all released checkpoints
        case["config"]["vision_config"]["image_size"] = case["preprocessor"]["size"]["longest_edge"]
    return case


def _take_for_granted(case: dict[str, Any]) -> None:
    """LFM2-VL's limits of pictures and its side of a patch are those that llama.cpp knows."""
    case["config"] |= {"encoder_patch_size": 16, "vision_config": case["config"]["vision_config"] | {"patch_size": 16}}
    case["preprocessor"]["encoder_patch_size"] = 16
    for key in OF_LFM2.split():
        case["preprocessor"].pop(key)
    shapes = {key: [32, 3 * 16**2] for key in case["tensors"] if key.endswith("patch_embedding.weight")}
    case["tensors"] |= shapes
    case["pictures"] = {"tall": [40, 90, "noise", 3], "small": [64, 50, "waves", 8], "odd": [131, 83, "noise", 9]}


def tensors_of(checkpoint: Path) -> dict[str, Any]:
    return {name: value.astype(np.float32) for name, value in load_file(checkpoint / "model.safetensors").items()}


def write(name: str, directory: Path, **options: Any) -> tuple[Path, Path, Path]:
    """The checkpoint, the model and what sees of it."""
    case = case_of(name)
    checkpoint = write_vision_case(name, case, directory / "checkpoint")
    return checkpoint, *write_both(case, tensors_of(checkpoint), directory / "model", **options)


def errors(found: LoadedModel, expected: LoadedModel, name: str) -> float:
    """The largest relative difference of embeddings, of pictures that are prepared alike."""
    towers = [model.tower for model in (found, expected) if model.tower is not None]
    assert len(towers) == 2
    wide = [tower.processor.layout(1300, 900, "auto") for tower in towers]  # which is cut into tiles, if the model cuts
    assert wide[0] == wide[1]
    worst = 0.0
    for spec in list(case_of(name)["pictures"].values())[-3:]:
        picture = draw(spec)
        layouts = [tower.processor.layout(picture.width, picture.height, "auto") for tower in towers]
        assert layouts[0] == layouts[1]
        one, other = (embedded(tower, picture) for tower in towers)
        worst = max(worst, float(np.abs(one - other).max() / np.abs(other).max()))
    return worst


def test_it_sees_what_the_checkpoint_sees(tmp_path: Path) -> None:
    with Rows() as rows:
        for name in width(list(CASES), FAST):
            with rows.row(name):
                checkpoint, model, _ = write(name, tmp_path / name)
                expected = load_model(checkpoint, EXACT)
                found = load_model(model.parent if name == "gemma3" else model, EXACT)
                assert found.facts.pictures == expected.facts.pictures
                if name not in ("idefics3", "ministral3"):  # factors of their positions are rounded in the file
                    assert found.facts.layers == expected.facts.layers
                assert errors(found, expected, name) < 1e-5


def test_its_texts_are_those_of_the_file_alone(tmp_path: Path) -> None:
    _, model, seeing = write("gemma3", tmp_path)
    with_both = logits_of(load_model(model, EXACT), list(range(40)))
    told = [is_described(model), model_fingerprint(model)]
    texts = load_model(model, replace(EXACT, sees=False))
    assert texts.tower is None
    assert np.abs(logits_of(texts, list(range(40))) - with_both).max() < 1e-5
    seeing.unlink()
    alone = load_model(model, EXACT)
    assert alone.tower is None
    assert np.abs(logits_of(alone, list(range(40))) - with_both).max() < 1e-5
    assert [is_described(model), model_fingerprint(model)] != told
    assert not is_described(model)


FORMS: list[tuple[str, dict[str, Any], float]] = [
    ("llava", {"swaps": True}, 1e-5),
    ("qwen2_vl", {"swaps": True}, 1e-5),
    ("mistral3", {"type_name": "Q8_0"}, 5e-2),
    ("gemma3", {"type_name": "Q8_0"}, 5e-2),
    ("gemma3", {"type_name": "F16"}, 1e-2),
    ("idefics3", {"type_name": "BF16"}, 5e-2),
]


def test_matrices_may_be_quantised_and_have_the_names_of_older_files(tmp_path: Path) -> None:
    with Rows() as rows:
        for name, options, most in width(FORMS, FORMS[:4]):
            with rows.row(f"{name} {options}"):
                place = tmp_path / f"{name}{len(list(tmp_path.iterdir()))}"
                checkpoint, model, _ = write(name, place, **options)
                assert errors(load_model(model, EXACT), load_model(checkpoint, EXACT), name) < most


def test_what_does_not_fit_is_told_and_texts_are_taken_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    refused: list[tuple[str, dict[str, Any], str]] = [
        (
            "gemma3",
            {"clip.projector_type": "gemma4v"},
            "clip.projector_type is 'gemma4v', allowed: gemma3, idefics3, internvl, lfm2, mlp, pixtral, qwen2vl_merger",
        ),
        ("gemma3", {"clip.vision.projector_type": "lfm2"}, "clip.vision.projector_type is 'lfm2'"),
        ("gemma3", {"clip.projector_type": None}, "has no clip.projector_type"),
        ("gemma3", {"clip.projector_type": "mlp", "clip.vision.projector.scale_factor": None}, "has no v.class_embd"),
        ("gemma3", {"clip.projector_type": "idefics3"}, "does not fit gemma3"),
        ("gemma3", {"clip.use_gelu": False}, "clip.use_gelu is False"),
        ("qwen2_vl", {"clip.use_gelu": True}, "clip.use_gelu is True, allowed: false"),
        ("mistral3", {"clip.use_gelu": False}, "clip.use_gelu is False, allowed: true, or clip.use_silu true"),
        ("gemma3", {"clip.vision.window_size": 3}, "has clip.vision.window_size, which is unknown"),
        ("gemma3", {"clip.has_audio_encoder": True}, "has clip.has_audio_encoder, which is unknown"),
        ("gemma3", {"general.architecture": "gemma3"}, "general.architecture is 'gemma3', allowed: 'clip'"),
        ("llava", {"clip.vision.mm_patch_merge_type": "spatial_unpad"}, "has clip.vision.mm_patch_merge_type"),
    ]
    with Rows() as rows:
        for number, (name, changes, said) in enumerate(refused):
            with rows.row(said):
                _, model, _ = write(name, tmp_path / str(number), changes=changes)
                caplog.clear()
                with caplog.at_level(logging.WARNING):
                    assert not is_described(model)
                assert f"pictures are refused: {model.parent / 'mmproj-model.gguf'}" in caplog.text
                assert said in caplog.text


def test_of_several_files_none_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, model, seeing = write("gemma3", tmp_path / "gemma3")
    shutil.copy(seeing, seeing.with_name("mmproj-other.gguf"))
    with caplog.at_level(logging.WARNING):
        assert not is_described(model)
    assert "name one with --mmproj: mmproj-model.gguf, mmproj-other.gguf" in caplog.text
    (seeing.with_name("mmproj-other.gguf")).unlink()
    assert is_described(model)


def test_a_file_that_is_named_sees_wherever_it_lies_or_the_model_is_refused(tmp_path: Path) -> None:
    checkpoint, model, seeing = write("gemma3", tmp_path / "gemma3")
    apart = tmp_path / "apart" / "any-name.gguf"
    apart.parent.mkdir()
    shutil.copy(seeing, seeing.with_name("mmproj-other.gguf"))
    seeing.rename(apart)
    words = ["--mmproj", str(apart), str(model)]
    config = resolve(read_arguments(words).givens, {}, model)
    try:
        assert is_described(config.model_dir)
        assert load_model(config.model_dir, EXACT).tower is not None
        assert apart in weight_files(config.model_dir)
        apart.write_bytes(model.read_bytes())
        with pytest.raises(ModelError, match=r"any-name.gguf general.architecture is 'gemma3', allowed: 'clip'"):
            load_model(config.model_dir, EXACT)
        apart.unlink()
        with pytest.raises(
            ConfigError, match=r"--mmproj=.*any-name.gguf .*must be an existing GGUF file on this machine"
        ):
            ModelLoad(config, lambda stage, fraction: None).result()
        other = resolve(read_arguments(["--mmproj", str(model), str(checkpoint)]).givens, {}, checkpoint)
        with pytest.raises(ConfigError, match=r"--mmproj=.*must be left out: only GGUF models"):
            ModelLoad(other, lambda stage, fraction: None).result()
    finally:
        resolve(read_arguments([str(model)]).givens, {}, model)  # names none
    assert apart not in weight_files(model)


def test_a_file_of_another_model_or_without_its_token_is_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    case = case_of("idefics3")
    checkpoint, model, seeing = write("idefics3", tmp_path)
    narrow = {name: value[:32] if "connector" in name else value for name, value in tensors_of(checkpoint).items()}
    _, other = write_both(case, narrow, tmp_path / "narrow")
    shutil.copy(other, seeing)
    unnamed = write_both({**case, "tokens": {}}, tensors_of(checkpoint), tmp_path / "unnamed")[0]
    case, tensors = case_of("mistral3"), tensors_of(write("mistral3", tmp_path / "mistral3")[0])
    merges_none = {name: value for name, value in tensors.items() if "patch_merger" not in name}
    pixtral = write_both(case, merges_none, tmp_path / "pixtral")[0]
    with caplog.at_level(logging.WARNING):
        assert not is_described(model)
        assert not is_described(unnamed)
        assert not is_described(pixtral)
    assert "has no tensor 'mm.patch_merger.weight', which clip.projector_type pixtral needs here" in caplog.text
    assert "has no tensor 'mm.model.fc.weight' whose vectors have" in caplog.text
    assert "has no token '<image>'" in caplog.text


def test_a_file_that_sees_is_no_model(tmp_path: Path) -> None:
    _, _, seeing = write("gemma3", tmp_path)
    with pytest.raises(ModelError, match=r"is the vision part of a model \(mmproj\)"):
        load_model(seeing, EXACT)


TEMPLATE = (
    "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}{% endfor %}"
)


def test_it_answers_about_pictures_as_the_checkpoint_does(tmp_path: Path) -> None:
    """With the tokenizer and the template of the file."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {letter: index for index, letter in enumerate(letters)} | {f"x{index}": index for index in range(256, 310)}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<image>"])
    keys = tokenizer_metadata(tokenizer, "gpt2", "gpt-2", eos=309) | {"chat_template": TEMPLATE}
    keys["ggml.tokens"] += [f"[PAD{index}]" for index in range(311, 320)]
    keys["ggml.token_type"] += [5] * 9
    checkpoint, model, _ = write("llava", tmp_path, tokenizer=keys)
    tokenizer.save(str(checkpoint / "tokenizer.json"))
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "x309", "chat_template": TEMPLATE}
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(facts), encoding="utf-8")
    answers = []
    for path in (checkpoint, model):
        with LLM(str(path), dtype="f32", max_num_seqs=1, max_model_len=128) as llm:
            for color in ("red", "blue"):
                file = io.BytesIO()
                Image.new("RGB", (40, 30), color).save(file, "PNG")
                url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
                content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What?"}]
                answer = llm.chat([{"role": "user", "content": content}], max_tokens=12)
                answers.append(answer.sequences[0].text)
    assert answers[:2] == answers[2:]
    assert answers[0] != answers[1], "the picture changes nothing"
