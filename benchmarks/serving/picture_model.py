"""Writes the model that pictures are measured on: LLaVA 1.5's tower before the benchmark's decoder, with random weights.

Does: a Hugging Face directory, llama.cpp's form of the tower (`model.write_gguf` has that of the decoder), pictures to send.
Does not: anything clever with the weights; speed does not depend on them. Used by `benchmarks.pictures`.
"""

from __future__ import annotations

import base64
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from PIL import Image, ImageDraw
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.serving.model import EOS, VOCAB_SIZE, Array, BenchShape, bpe_tables, model_config, random_weights

PLACEHOLDER = "<image>"
PLACEHOLDER_ID = VOCAB_SIZE - 1
PICTURE_TOKENS = 576
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% else %}" + PLACEHOLDER + "\n{% endif %}"
    "{% endfor %}{% endif %}\n{% endfor %}assistant:"
)
PLAIN_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
"""For a server that writes its own marker into the content before the template sees it."""

_MEAN, _STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True, slots=True)
class TowerShape:
    """A CLIP tower; the default is ViT-L/14 for 336 pixels, 304 million parameters, whose last layer nobody reads."""

    hidden_size: int = 1024
    num_layers: int = 24
    num_heads: int = 16
    intermediate_size: int = 4096
    image_size: int = 336
    patch_size: int = 14


def write_picture_model(directory: Path, tower: TowerShape, decoder: BenchShape) -> None:
    """Write the Hugging Face directory."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "image_token_index": PLACEHOLDER_ID,
        "image_seq_length": PICTURE_TOKENS,
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
        "projector_hidden_act": "gelu",
        "text_config": model_config(decoder),
        "vision_config": {
            "model_type": "clip_vision_model",
            "hidden_size": tower.hidden_size,
            "intermediate_size": tower.intermediate_size,
            "num_hidden_layers": tower.num_layers,
            "num_attention_heads": tower.num_heads,
            "image_size": tower.image_size,
            "patch_size": tower.patch_size,
            "projection_dim": 768,
            "hidden_act": "quick_gelu",
        },
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    _write_json(directory / "config.json", config)
    pictures = {
        "image_processor_type": "CLIPImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": tower.image_size},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": {"height": tower.image_size, "width": tower.image_size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": _MEAN,
        "image_std": _STD,
        "do_convert_rgb": True,
    }
    _write_json(directory / "preprocessor_config.json", pictures)
    named = {
        "processor_class": "LlavaProcessor",
        "image_token": PLACEHOLDER,
        "patch_size": tower.patch_size,
        "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
    }
    _write_json(directory / "processor_config.json", named)
    _write_tokenizer(directory)
    weights = {f"language_model.{name}": values for name, values in random_weights(decoder).items()}
    save_file(weights | tower_weights(tower, decoder.hidden_size), directory / "model.safetensors", {"format": "pt"})


def _write_tokenizer(directory: Path) -> None:
    """The benchmark's, with the placeholder in the place of the last merged token."""
    vocabulary, merges = bpe_tables()
    last = merges.pop()
    del vocabulary["".join(last)]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([EOS, PLACEHOLDER])
    tokenizer.save(str(directory / "tokenizer.json"))
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS, "chat_template": TEMPLATE}
    _write_json(directory / "tokenizer_config.json", facts)
    (directory / "plain.jinja").write_text(PLAIN_TEMPLATE, encoding="utf-8")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")


def tower_weights(shape: TowerShape, decoder_size: int) -> dict[str, Array]:
    """Tower and projector: normally distributed matrices in bfloat16, norms of one, other vectors of zero."""
    stream = np.random.default_rng(1)
    weights: dict[str, Array] = {}
    for name, dimensions in _tower_shapes(shape, decoder_size).items():
        if len(dimensions) > 1:
            scale = 0.5 / np.prod(dimensions[1:]) ** 0.5
            values: Array = stream.standard_normal(dimensions, dtype=np.float32) * np.float32(scale)
        else:
            is_norm = "norm" in name and name.endswith("weight")
            values = np.full(dimensions, 1 if is_norm else 0, dtype=np.float32)
        weights[name] = values.astype(ml_dtypes.bfloat16)
    return weights


def _tower_shapes(shape: TowerShape, decoder_size: int) -> dict[str, tuple[int, ...]]:
    hidden, inner = shape.hidden_size, shape.intermediate_size
    vision = "vision_tower.vision_model"
    num_rows = (shape.image_size // shape.patch_size) ** 2 + 1
    shapes: dict[str, tuple[int, ...]] = {
        f"{vision}.embeddings.class_embedding": (hidden,),
        f"{vision}.embeddings.patch_embedding.weight": (hidden, 3, shape.patch_size, shape.patch_size),
        f"{vision}.embeddings.position_embedding.weight": (num_rows, hidden),
        "multi_modal_projector.linear_1.weight": (decoder_size, hidden),
        "multi_modal_projector.linear_1.bias": (decoder_size,),
        "multi_modal_projector.linear_2.weight": (decoder_size, decoder_size),
        "multi_modal_projector.linear_2.bias": (decoder_size,),
    }
    matrices = {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (hidden, hidden)}
    matrices |= {"self_attn.v_proj": (hidden, hidden), "self_attn.out_proj": (hidden, hidden)}
    matrices |= {"mlp.fc1": (inner, hidden), "mlp.fc2": (hidden, inner)}
    norms = [f"{vision}.pre_layrnorm", f"{vision}.post_layernorm"]
    for layer in range(shape.num_layers):
        prefix = f"{vision}.encoder.layers.{layer}"
        norms += [f"{prefix}.layer_norm1", f"{prefix}.layer_norm2"]
        for name, dimensions in matrices.items():
            shapes |= {f"{prefix}.{name}.weight": dimensions, f"{prefix}.{name}.bias": dimensions[:1]}
    for norm in norms:
        shapes |= {f"{norm}.weight": (hidden,), f"{norm}.bias": (hidden,)}
    return shapes


# --- llama.cpp's form -------------------------------------------------------------------------------------------------

_GGUF_NAMES = {
    "vision_tower.vision_model.embeddings.class_embedding": "v.class_embd",
    "vision_tower.vision_model.embeddings.patch_embedding.weight": "v.patch_embd.weight",
    "vision_tower.vision_model.embeddings.position_embedding.weight": "v.position_embd.weight",
}
_GGUF_PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    "layer_norm1": "ln1",
    "layer_norm2": "ln2",
}


def write_mmproj(directory: Path, shape: TowerShape, decoder_size: int, quantization: str) -> Path:
    """Write tower and projector as llama.cpp reads them, the layers' matrices as `quantization` (Q8_0, F16, BF16).

    The program computes all layers but the last of those that the file counts, as LLaVA 1.5 does.
    """
    import gguf

    target = directory / f"mmproj-{quantization}.gguf"
    writer = gguf.GGUFWriter(target, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "mlp")
    writer.add_bool("clip.has_llava_projector", True)
    writer.add_bool("clip.use_gelu", False)  # quick_gelu
    writer.add_file_type({"Q8_0": 7, "F16": 1, "BF16": 32}[quantization])
    for key, number in {
        "image_size": shape.image_size,
        "patch_size": shape.patch_size,
        "embedding_length": shape.hidden_size,
        "feed_forward_length": shape.intermediate_size,
        "projection_dim": decoder_size,
        "attention.head_count": shape.num_heads,
        "block_count": shape.num_layers,
    }.items():
        writer.add_uint32(f"clip.vision.{key}", number)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    writer.add_array("clip.vision.image_mean", list(_MEAN))
    writer.add_array("clip.vision.image_std", list(_STD))
    kind = gguf.GGMLQuantizationType[quantization]
    for name, values in tower_weights(shape, decoder_size).items():
        if "post_layernorm" in name:
            continue  # it stands behind the last layer
        full = values.astype(np.float32)
        if full.ndim == 2 and "embedding" not in name:
            writer.add_tensor(_gguf_name(name), gguf.quants.quantize(full, kind), raw_dtype=kind)
        else:
            writer.add_tensor(_gguf_name(name), full.astype(np.float16) if full.ndim == 4 else full)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _gguf_name(name: str) -> str:
    if name in _GGUF_NAMES:
        return _GGUF_NAMES[name]
    stem, _, kind = name.rpartition(".")
    if stem.startswith("multi_modal_projector."):
        return f"mm.{0 if stem.endswith('1') else 2}.{kind}"
    if stem.endswith("pre_layrnorm"):
        return f"v.pre_ln.{kind}"
    _, _, rest = stem.partition("encoder.layers.")
    layer, _, part = rest.partition(".")
    return f"v.blk.{layer}.{_GGUF_PARTS[part]}.{kind}"


# --- pictures ---------------------------------------------------------------------------------------------------------


def draw_jpeg(number: int, width: int = 640, height: int = 480) -> bytes:
    """A photograph's size and some of its detail: shapes over noise; another picture for every number."""
    stream = np.random.default_rng(number)
    coarse = stream.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(image)
    for _ in range(12):
        x, y, side = (int(stream.integers(0, most)) for most in (width, height, 160))
        color = tuple(int(value) for value in stream.integers(0, 256, 3))
        shape = pen.ellipse if stream.integers(0, 2) else pen.rectangle
        shape((x, y, x + side, y + side), fill=color)
    content = io.BytesIO()
    image.save(content, "JPEG", quality=85)
    return content.getvalue()


def data_url(jpeg: bytes) -> str:
    """As a request carries it."""
    return "data:image/jpeg;base64," + base64.b64encode(jpeg).decode()
