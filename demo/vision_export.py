"""Turns a checkpoint of the vision training into the Hugging Face folder that the wheel ships.

``python -m demo.vision_export OUT_DIR [CHECKPOINT]``: the files about text (the demo model's vocabulary and four tokens
more, the chat template with pictures) and about pictures; with CHECKPOINT also weights in bfloat16 under the names of
``Idefics3ForConditionalGeneration`` (tied: no ``lm_head``), and their configuration.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from demo.export import write_json
from demo.model import DemoConfig
from demo.pictures.prepare import LONGEST, SIDE
from demo.tokenizer import TEMPLATE
from demo.vision_model import (
    IMAGE,
    NEW_TOKENS,
    OLD_VOCABULARY,
    PER_PICTURE,
    VOCABULARY,
    TowerConfig,
    hf_config,
    hf_name,
)

TEXT_MODEL = Path("src/dragoman/demo_model")
LANCZOS = 1  # Pillow's number
STRING_PART = "{%- if part is string -%}{{ part }}\n"
PICTURE_PART = "{%- elif part.type is defined and part.type in ['image', 'image_url'] -%}{{ '" + IMAGE + "' }}\n"


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


def token_entry(content: str) -> dict[str, Any]:
    """A special token as tokenizer files describe it."""
    return {
        "content": content,
        "lstrip": False,
        "normalized": False,
        "rstrip": False,
        "single_word": False,
        "special": True,
    }


def write_tokenizer(folder: Path) -> None:
    """The demo model's tokenizer with the tokens around pictures, and the chat template with pictures."""
    tokenizer = read_json(TEXT_MODEL / "tokenizer.json")
    config = read_json(TEXT_MODEL / "tokenizer_config.json")
    special = read_json(TEXT_MODEL / "special_tokens_map.json")
    for index, token in enumerate(NEW_TOKENS, OLD_VOCABULARY):
        tokenizer["added_tokens"].append({"id": index, **token_entry(token)})
        config["added_tokens_decoder"][str(index)] = token_entry(token)
    config["additional_special_tokens"] += NEW_TOKENS
    special["additional_special_tokens"] += NEW_TOKENS
    config["processor_class"] = "Idefics3Processor"
    config["model_input_names"] = ["input_ids", "attention_mask"]  # else the processor makes token types as well
    del config["chat_template"]
    text = json.dumps(tokenizer, ensure_ascii=False, indent=1) + "\n"
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    write_json(folder / "tokenizer_config.json", config)
    write_json(folder / "special_tokens_map.json", special)
    (folder / "chat_template.jinja").write_text(vision_template(), encoding="utf-8")


def vision_template() -> str:
    """The demo model's chat template that also writes a marker for each picture."""
    template = TEMPLATE.read_text(encoding="utf-8").rstrip("\n")
    assert template.count(STRING_PART) == 1
    return template.replace(STRING_PART, STRING_PART + PICTURE_PART)


def write_processor(folder: Path) -> None:
    """What is done to a picture, and how many tokens stand for it."""
    image = {
        "image_processor_type": "Idefics3ImageProcessor",
        "processor_class": "Idefics3Processor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"longest_edge": LONGEST},
        "resample": LANCZOS,
        "do_image_splitting": False,
        "max_image_size": {"longest_edge": SIDE},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "do_pad": True,
    }
    write_json(folder / "preprocessor_config.json", image)
    write_json(folder / "processor_config.json", {"processor_class": "Idefics3Processor", "image_seq_len": PER_PICTURE})


def write_model(checkpoint: Path, folder: Path) -> dict[str, Any]:
    """Weights and configuration; returns what the last stage of training cost."""
    data = torch.load(checkpoint, map_location="cpu")
    state = {hf_name(name): weight.to(torch.bfloat16).contiguous() for name, weight in data["model"].items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    write_json(folder / "config.json", hf_config(TowerConfig(), DemoConfig(vocab_size=VOCABULARY)))
    write_json(folder / "generation_config.json", read_json(TEXT_MODEL / "generation_config.json"))
    return {**data["cost"], "parameters": sum(weight.numel() for weight in state.values())}


def main() -> None:
    """Write the folder given on the command line."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    write_processor(folder)
    cost = write_model(Path(sys.argv[2]), folder) if len(sys.argv) > 2 else {}
    print(json.dumps({**cost, "bytes": sum(path.stat().st_size for path in folder.iterdir())}))


if __name__ == "__main__":
    main()
