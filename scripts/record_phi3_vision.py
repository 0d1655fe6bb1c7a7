"""Records how optimum-intel exports a small Phi-3.5-vision, and what the model makes of pictures and prompts.

Run: pip install optimum-intel nncf torchvision ml_dtypes, then `python scripts/record_phi3_vision.py` from the repository's
root. transformers does not know the model (its code comes with the checkpoint), so its parts are written down here, from
public descriptions, with the names and shapes that the exporter looks for: CLIP's tower, the separators, the projection
(`PictureEmbedding`), the rotary factors (`ShortOrLong`) and Phi-3's decoder, which else is transformers' own. Exporter,
patches and config are optimum-intel's.

What tests/models/exported_seeing holds afterwards:
    phi3_v.tar.xz  the exported directory, as tests/support/exported_model.py explains archives
    phi3_v.npz     as scripts/record_picture_references.py explains them, from the torch model in f32 with eager attention
"""

from __future__ import annotations

import json
import math
import re
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import torch
import torchvision
from optimum.exporters.openvino.convert import export_from_model
from optimum.exporters.openvino.model_configs import Phi3VisionOpenVINOConfig
from PIL import Image
from safetensors.numpy import load_file
from torchvision.transforms.functional import pad, resize
from transformers import AutoConfig, CLIPConfig, CLIPVisionConfig, CLIPVisionModel, Phi3Config, Phi3ForCausalLM

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / "scripts")]
from record_ir_references import add  # noqa: E402

from dragoman.types import Picture  # noqa: E402
from tests.support.exported_model import parts_of  # noqa: E402
from tests.support.family_checkpoint import Array, Case, write_case  # noqa: E402
from tests.support.seeing_export import ARCHIVE, BOS, PARTS, PLACEHOLDER, REFERENCE, read_seeing_case  # noqa: E402
from tests.support.vision_checkpoint import checksum, draw, prompt_pieces, sampled, token_ids  # noqa: E402

NAME = "phi3_v"
TILE, SIDE = 336, 24  # pixels and patches of a tile's side
MORE_CROPS = 16  # for pictures that are in no prompt
NUM_POSITIONS, NUM_COLUMNS = 16, 24

_CONSTANT = re.compile(rb'offset="(\d+)" size="(\d+)"')


class Phi3VConfig(Phi3Config):
    """The config of the checkpoint's own code."""

    model_type = "phi3_v"


class PictureEmbedding(torch.nn.Module):
    """Tiles to embeddings: CLIP's patches in fours, the tiles beside each other, a separator behind each row."""

    def __init__(self, config: Phi3VConfig, vision: CLIPVisionConfig) -> None:
        super().__init__()
        size = 4 * vision.hidden_size
        self.img_processor = CLIPVisionModel._from_config(vision, attn_implementation="eager")
        self.glb_GN = torch.nn.Parameter(torch.zeros(1, 1, size))
        self.sub_GN = torch.nn.Parameter(torch.zeros(1, 1, 1, size))
        hidden = config.hidden_size
        self.img_projection = torch.nn.Sequential(
            torch.nn.Linear(size, hidden), torch.nn.GELU(), torch.nn.Linear(hidden, hidden)
        )

    def get_img_features(self, pixels: torch.Tensor) -> torch.Tensor:
        """The patches of each tile, as the last layer but one leaves them."""
        states = self.img_processor(pixels, output_hidden_states=True).hidden_states
        return states[-2][:, 1:]

    def rows(self, features: torch.Tensor, down: int, across: int) -> torch.Tensor:
        """Tiles [down * across, patches, C] side by side, a separator behind each row: [N, 4C]."""
        lines = []
        for row in range(down * SIDE // 2):
            for column in range(across * SIDE // 2):
                tile = row * 2 // SIDE * across + column * 2 // SIDE
                top, left = row * 2 % SIDE, column * 2 % SIDE
                square = [features[tile, (top + y) * SIDE + left + x] for y in (0, 1) for x in (0, 1)]
                lines.append(torch.cat(square))
            lines.append(self.sub_GN[0, 0, 0])
        return torch.stack(lines)

    def forward(self, tiles: torch.Tensor, down: int, across: int) -> torch.Tensor:
        """Embeddings [N, hidden] of a picture, whose first tile is the picture as a whole."""
        features = self.get_img_features(tiles)
        parts = [self.rows(features[1:], down, across), self.glb_GN[0], self.rows(features[:1], 1, 1)]
        return self.img_projection(torch.cat(parts))


class ShortOrLong(torch.nn.Module):
    """Phi-3's rotary angles, by other factors from some length on: the choice is no part of an exported graph."""

    def __init__(self, config: Phi3VConfig, rule: dict[str, list[float]]) -> None:
        super().__init__()
        self.short, self.long = (torch.tensor(rule[key]) for key in ("short_factor", "long_factor"))
        size = config.hidden_size // config.num_attention_heads
        self.base = config.rope_theta ** (torch.arange(0, size, 2) / size)
        self.boundary = config.original_max_position_embeddings
        times = math.log(config.max_position_embeddings / self.boundary)
        self.scale = math.sqrt(1 + times / math.log(self.boundary))

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines, [batch, tokens, size] each."""
        factors = self.long if torch.max(position_ids) + 1 > self.boundary else self.short
        half = position_ids[..., None].float() / (factors * self.base)
        angles = torch.cat((half, half), dim=-1)
        return angles.cos() * self.scale, angles.sin() * self.scale


class Phi3VForCausalLM(Phi3ForCausalLM):
    """Phi-3 with the tower where the exporter looks for it."""

    config_class = Phi3VConfig

    def __init__(self, config: Phi3VConfig, vision: CLIPVisionConfig) -> None:
        super().__init__(config)
        self.model.vision_embed_tokens = PictureEmbedding(config, vision)


def prepared(picture: Picture, num_crops: int) -> tuple[torch.Tensor, int, int]:
    """The tiles of a picture f32 [1 + down * across, 3, 336, 336], that of the whole first; `down`; `across`."""
    image = Image.frombytes("RGB", (picture.width, picture.height), picture.rgb)
    is_turned = image.width < image.height
    if is_turned:
        image = image.transpose(Image.Transpose.TRANSPOSE)
    ratio, across = image.width / image.height, 1
    while (across + 1) * np.ceil((across + 1) / ratio) <= num_crops:
        across += 1
    image = resize(image, [int(across * TILE / ratio), across * TILE])
    missing = int(np.ceil(image.height / TILE) * TILE) - image.height
    image = pad(image, [0, missing // 2, 0, missing - missing // 2], fill=[255, 255, 255])
    if is_turned:
        image = image.transpose(Image.Transpose.TRANSPOSE)
    described = read_seeing_case()["preprocessor"]
    steps = torchvision.transforms.Compose(
        [
            torchvision.transforms.ToTensor(),
            torchvision.transforms.Normalize(described["image_mean"], described["image_std"]),
        ]
    )
    pixels = steps(image)
    whole = torch.nn.functional.interpolate(pixels[None], size=(TILE, TILE), mode="bicubic")
    down, across = image.height // TILE, image.width // TILE
    cut = pixels.reshape(3, down, TILE, across, TILE).permute(1, 3, 0, 2, 4).reshape(-1, 3, TILE, TILE)
    return torch.cat([whole, cut]), down, across


def load(case: Case, directory: Path) -> Phi3VForCausalLM:
    """The torch model with the case's weights."""
    vision = CLIPVisionConfig(**case["vision"])
    clip = directory / "clip"
    CLIPConfig(vision_config=vision.to_dict()).save_pretrained(clip)
    config = Phi3VConfig(**{**case["config"], "torch_dtype": "float32"})
    config.img_processor = {**config.img_processor, "model_name": str(clip)}  # the exporter reads its config
    config._attn_implementation = "eager"
    model = Phi3VForCausalLM(config, vision)
    config.rope_theta = case["config"]["rope_theta"]
    model.model.rotary_emb = ShortOrLong(config, case["config"]["rope_scaling"])
    model.eval()
    tensors = {key: torch.from_numpy(value) for key, value in load_file(directory / "model.safetensors").items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    left = [key for key in (*missing, *unexpected) if "position_ids" not in key]
    if left:
        raise SystemExit(f"tensors do not fit: {left}")
    return model


def record_reference(case: Case, model: Phi3VForCausalLM) -> None:
    """Write what the torch model makes of the case's pictures and prompts."""
    columns = np.sort(np.random.RandomState(1).permutation(case["config"]["vocab_size"])[:NUM_COLUMNS])
    arrays: dict[str, Array] = {"columns": columns.astype(np.uint16)}
    embedded: dict[str, torch.Tensor] = {}
    used = {item for items in case["prompts"] for item in items}
    for name, spec in case["pictures"].items():
        num_crops = case["preprocessor"]["num_crops"] if name in used else MORE_CROPS
        tiles, down, across = prepared(draw(spec), num_crops)
        embedded[name] = model.model.vision_embed_tokens(tiles, down, across)
        arrays[f"crops_{name}"] = np.array(num_crops)
        pixels, vectors = tiles.numpy(), embedded[name].numpy()
        arrays[f"shape_{name}"] = np.array(pixels.shape, dtype=np.int64)
        arrays[f"pixels_{name}"] = sampled(pixels)
        arrays[f"checksum_{name}"] = np.array(checksum(pixels))
        arrays[f"count_{name}"] = np.array(len(vectors))
        arrays[f"embeddings_{name}"] = sampled(vectors)
        print(
            f"{name}: {down} x {across}, {len(vectors)} embeddings, rms {np.sqrt(np.mean(vectors**2)):.2f}", flush=True
        )
    for index in range(len(case["prompts"])):
        ids, vectors_of = prompt(case, index, embedded)
        vectors = model.model.embed_tokens(torch.tensor([ids]))
        for place, part in vectors_of:
            vectors[0, place : place + len(part)] = part
        logits = model(inputs_embeds=vectors, use_cache=False).logits[0].numpy()
        arrays[f"token_ids_{index}"] = np.array(ids, dtype=np.uint16)
        arrays[f"logits_{index}"] = logits[-NUM_POSITIONS:, columns]
        print(f"prompt {index}: {len(ids)} tokens, rms of logits {np.sqrt(np.mean(logits**2)):.2f}", flush=True)
    np.savez_compressed(REFERENCE, allow_pickle=False, **arrays)
    print(f"{REFERENCE.name}: {REFERENCE.stat().st_size} bytes", flush=True)


def prompt(
    case: Case, index: int, embedded: dict[str, torch.Tensor]
) -> tuple[list[int], list[tuple[int, torch.Tensor]]]:
    """A prompt's tokens as the reference's processor makes them, and where pictures stand in it.

    Texts between pictures are tokenised each by itself, so each begins with the token that texts begin with.
    """
    ids, places = [BOS], []
    for kind, piece in prompt_pieces(NAME, case, index):
        if kind == "picture":
            places.append((len(ids), embedded[piece]))
            ids += [PLACEHOLDER] * len(embedded[piece]) + [BOS]
        else:
            ids += token_ids(case, piece)
    return ids, places


def record_export(case: Case, model: Phi3VForCausalLM, checkpoint: Path, directory: Path) -> None:
    """Write the archive of what optimum-intel exports."""
    export_from_model(model, directory, task="image-text-to-text", stateful=True, trust_remote_code=True)
    exported = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    added = {key: exported[key] for key in ("glb_GN", "sub_GN")}
    (directory / "config.json").write_text(json.dumps({**case["config"], **added}, indent=2), encoding="utf-8")
    (directory / "preprocessor_config.json").write_text(json.dumps(case["preprocessor"], indent=2), encoding="utf-8")
    tensors, parts, rest = load_file(checkpoint / "model.safetensors"), {}, b""
    for graph in PARTS:
        spans = _CONSTANT.findall((directory / f"{graph}.xml").read_bytes())
        weights = (directory / f"{graph}.bin").read_bytes()
        parts[f"{graph}.bin"], left = parts_of(weights, [(int(begin), int(size)) for begin, size in spans], tensors)
        rest += left
    with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        kept = ("config.json", "preprocessor_config.json", "openvino_config.json", "generation_config.json")
        for name in (*(f"{graph}.xml" for graph in PARTS), *kept):
            if (directory / name).exists():
                add(archive, name, (directory / name).read_bytes())
        add(archive, "parts.json", json.dumps(parts).encode())
        add(archive, "rest.bin", rest)
    print(f"{ARCHIVE.name}: {ARCHIVE.stat().st_size} bytes, {len(rest)} of them weights", flush=True)


def main() -> None:
    """Record the export and the reference."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    AutoConfig.register("phi3_v", Phi3VConfig)
    Phi3VisionOpenVINOConfig.MAX_TRANSFORMERS_VERSION = None  # whether a newer one will do is seen by the tests
    case = read_seeing_case()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = write_case(NAME, case, Path(folder) / "case")
        record_reference(case, load(case, checkpoint))
        record_export(case, load(case, checkpoint), checkpoint, Path(folder) / "exported")  # it changes the model


if __name__ == "__main__":
    main()
