"""Records what transformers makes of pictures, for the cases of tests/models/vision, in float32 and with eager attention.

Run: pip install "transformers<5" torch accelerate beside dragoman, then
`python scripts/record_picture_references.py [CASE ...]` from the repository's root; without a name every case that the
version knows is recorded. Version 4.57.6 has image processors that need Pillow and numpy alone; torchvision must not be
there. The cases of Qwen 3.5, which it does not know, were recorded with 5.23.0, and those of Gemma 4, Mistral 3 and
LFM2-VL with 5.24.0 beside torchvision, which the classes of their processors ask for: name them. For each case
(tests/support/vision_checkpoint.py explains them) it
    1. has the tensors' layout written into <case>.json and the checkpoint loaded, as record_family_references.py does,
    2. has the reference's processor prepare each picture alone and the model embed it, and records in <case>.npz
       `shape_P` and `pixels_P`, `checksum_P` of the array for the tower; `ids_P`, what becomes of the marker; and
       `embeddings_P`, what stands in the placeholders' places, levels side by side (larger arrays as samples),
    3. records of each prompt `token_ids_N`, `positions_N` [3, T] where tokens have three, and `logits_N` of its last
       positions [P, C], C = `columns` of the vocabulary,
    4. says which tensors do not change the logits of the first prompt: a test could not see a mistake in those.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
from record_family_references import layout, load, text_config, write_json  # noqa: E402

from tests.support.family_checkpoint import Array, Case  # noqa: E402
from tests.support.vision_checkpoint import (  # noqa: E402
    CASES,
    checksum,
    draw,
    prompt_pieces,
    read_vision_case,
    sampled,
    vision_case_names,
    vocabulary,
    write_vision_case,
)

NUM_POSITIONS = 16
NUM_COLUMNS = 24


def record(name: str) -> None:
    """Record one case."""
    case = read_vision_case(name)
    if case.get("recorded_layout", True):
        case["tensors"] = layout(case)
    write_json(CASES / f"{name}.json", case)
    with tempfile.TemporaryDirectory() as directory:
        model = load(name, case, write_vision_case(name, case, Path(directory)))
    processor = make_processor(case)
    columns = np.sort(np.random.RandomState(1).permutation(text_config(case)["vocab_size"])[:NUM_COLUMNS])
    arrays: dict[str, Array] = {"columns": columns.astype(np.uint16)}
    for picture in case["pictures"]:
        arrays |= record_picture(case, picture, processor, model)
    summary = []
    for index in range(len(case["prompts"])):
        inputs = prepare(case, prompt_pieces(name, case, index), processor)
        arrays[f"token_ids_{index}"] = inputs["input_ids"][0].numpy().astype(np.uint16)
        logits, _ = forward(model, inputs)
        arrays[f"logits_{index}"] = logits[-NUM_POSITIONS:, columns]
        arrays |= {f"positions_{index}": positions for positions in rotary_positions(model, inputs)}
        summary.append(f"{len(logits)} tokens: {np.sqrt(np.mean(logits**2)):.2f}")
    np.savez_compressed(CASES / f"{name}.npz", allow_pickle=False, **arrays)
    print(f"{name}: {(CASES / f'{name}.npz').stat().st_size} bytes, rms of logits {', '.join(summary)}", flush=True)
    inputs = prepare(case, prompt_pieces(name, case, 0), processor)
    for tensor in silent_tensors(model, inputs, case.get("unused", [])):
        print(f"    {tensor} does not change the logits")


def record_picture(case: Case, picture: str, processor: Any, model: Any) -> dict[str, Array]:
    """The arrays of one picture."""
    inputs = prepare(case, [("picture", picture)], processor)
    token_ids = inputs["input_ids"][0].numpy()
    _, embedded = forward(model, inputs)
    pixels = inputs["pixel_values"].numpy()
    if "spatial_shapes" in inputs:  # of what is padded to one length, what is there
        pixels = pixels[inputs["pixel_attention_mask"].numpy() == 1]
    if "image_position_ids" in inputs:
        pixels = pixels[inputs["image_position_ids"].numpy()[..., 0] >= 0]
    return {
        f"shape_{picture}": np.array(pixels.shape, dtype=np.int64),
        f"pixels_{picture}": sampled(pixels),
        f"checksum_{picture}": np.array(checksum(pixels)),
        f"ids_{picture}": token_ids.astype(np.uint16),
        f"embeddings_{picture}": sampled(embedded[token_ids == placeholder_id(case)]),
    }


def placeholder_id(case: Case) -> int:
    """The token that stands where an embedding goes."""
    config = case["config"]
    return int(config.get("image_token_id", config.get("image_token_index")))


def make_processor(case: Case) -> Any:
    """The reference's processor, over a tokenizer that knows the case's texts and nothing else."""
    table = vocabulary(case)
    tokenizer = Tokenizer(WordLevel(table, unk_token=min(table, key=lambda text: table[text])))
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in table])
    described = case["preprocessor"]
    kind = described.get("image_processor_type", described.get("feature_extractor_type"))
    made = case["processor"]
    image_class = getattr(transformers, made.get("image_class", kind.removesuffix("Fast")))
    image_processor = image_class(**described, **made.get("image_arguments", {}))
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **case.get("tokenizer", {}))
    return getattr(transformers, made["class"])(
        image_processor=image_processor, tokenizer=wrapped, **made.get("arguments", {})
    )


def correct_padding() -> None:
    """Have pictures padded below and beside each other, however few rows they have.

    The processors of tiles do not say which axis is that of colours, and one or three rows look like it.
    """
    for kind in (transformers.LlavaNextImageProcessor, transformers.LlavaOnevisionImageProcessor):
        plain = kind.pad

        def pad(processor: Any, image: Array, padding: Any, *, plain: Any = plain, **options: Any) -> Array:
            known = {"input_data_format": "channels_last"} if image.ndim == 3 else {}
            return np.asarray(plain(processor, image, padding, **{**options, **known}))

        kind.pad = pad


def prepare(case: Case, pieces: list[tuple[str, str]], processor: Any) -> Any:
    """The model's inputs for a prompt."""
    text = "".join(case["marker"] if kind == "picture" else piece for kind, piece in pieces)
    pictures = [draw(case["pictures"][piece]) for kind, piece in pieces if kind == "picture"]
    images = [Image.frombytes("RGB", (picture.width, picture.height), picture.rgb) for picture in pictures]
    # told, since pictures of one or three rows look like planes of colours
    options = {"input_data_format": "channels_last"} if images else {}
    return processor(images=images or None, text=[text], return_tensors="pt", images_kwargs=options)


def forward(model: Any, inputs: Any) -> tuple[Array, Array]:
    """Logits f32 [T, vocab], and what goes into the decoder [T, hidden * levels]; only placeholders have further levels."""
    taken: dict[str, Any] = {}
    decoder = getattr(model.model, "text_model", None) or model.get_decoder()  # of Idefics3 the latter is the whole
    hook = decoder.register_forward_pre_hook(
        lambda _module, _arguments, options: taken.update(options), with_kwargs=True
    )
    with torch.no_grad():
        logits = model(**inputs, use_cache=False).logits[0]
    hook.remove()
    embedded = taken["inputs_embeds"][0].numpy()
    deeper = taken.get("deepstack_visual_embeds")
    if deeper is not None:
        mask = taken["visual_pos_masks"][0].numpy()
        levels = np.zeros((len(embedded), embedded.shape[1] * len(deeper)), dtype=np.float32)
        levels[mask] = np.concatenate([level.numpy() for level in deeper], axis=1)
        embedded = np.concatenate([embedded, levels], axis=1)
    return np.asarray(logits.numpy(), dtype=np.float32), embedded


def rotary_positions(model: Any, inputs: Any) -> list[Array]:
    """Of each token its three positions, i16 [3, T]; nothing where tokens have one."""
    if not hasattr(model.model, "get_rope_index"):
        return []
    told = {name: inputs[name] for name in ("image_grid_thw", "mm_token_type_ids") if name in inputs}
    found, _ = model.model.get_rope_index(inputs["input_ids"], **told)
    return [found[:, 0].numpy().astype(np.int16)]


def silent_tensors(model: Any, inputs: Any, unused: list[str]) -> list[str]:
    """The parameters that can be changed without changing a prompt's logits, but for those that `unused` names."""
    before, _ = forward(model, inputs)
    silent = []
    for name, parameter in model.named_parameters():
        if any(fnmatchcase(name, pattern) for pattern in unused):
            continue
        kept = parameter.data.clone()
        parameter.data *= 1 + 0.3 * torch.rand(kept.shape, generator=torch.Generator().manual_seed(1))
        if np.max(np.abs(forward(model, inputs)[0] - before)) < 1e-3 * np.max(np.abs(before)):
            silent.append(name)
        parameter.data = kept
    return silent


def correct_positions() -> None:
    """Have the patch in row r of a full tile at row r of the table of positions, as Idefics3 and SmolVLM were trained.

    4.57 puts it at row r - 1 in float32 (not in bfloat16): it rounds r / rows down before it looks for its place. Version 5
    is right again.
    """
    names = ("idefics3.modeling_idefics3.Idefics3", "smolvlm.modeling_smolvlm.SmolVLM")
    for name in names:
        module, _, prefix = name.rpartition(".")
        embeddings = getattr(importlib.import_module(f"transformers.models.{module}"), f"{prefix}VisionEmbeddings")

        def forward(self: Any, pixel_values: Any, patch_attention_mask: Any) -> Any:
            if not patch_attention_mask.all():
                raise NotImplementedError("a tile that is padded")
            patches = self.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
            return patches + self.position_embedding.weight

        embeddings.forward = forward


def resize_with_pillow() -> None:
    """Have LFM2-VL's pictures resized by Pillow: its only processor has torchvision do it, which rounds otherwise."""
    if not hasattr(transformers, "Lfm2VlImageProcessor"):
        return
    backends = importlib.import_module("transformers.image_processing_backends")

    def resize(_processor: Any, images: Any, size: Any, resample: Any = None, **_options: Any) -> Any:
        pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images.reshape(-1, *images.shape[-3:])]
        resized = [np.asarray(picture.resize((size.width, size.height), int(resample))) for picture in pictures]
        return (
            torch.from_numpy(np.stack(resized)).permute(0, 3, 1, 2).reshape(*images.shape[:-2], size.height, size.width)
        )

    backends.TorchvisionBackend.resize = resize


def main(names: list[str]) -> None:
    """Record the named cases, or all."""
    torch.set_num_threads(1)
    correct_positions()
    correct_padding()
    resize_with_pillow()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    # the tokenizer is of no family's class; and a processor of videos asks for torchvision
    transformers.ProcessorMixin.check_argument_for_proper_class = lambda *_arguments: None
    for name in names or vision_case_names():
        case = read_vision_case(name)
        if names or ("made_of" not in case and hasattr(transformers, case["config"]["architectures"][0])):
            record(name)


if __name__ == "__main__":
    main(sys.argv[1:])
