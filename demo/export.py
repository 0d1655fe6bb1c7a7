"""Turns a training checkpoint into the Hugging Face folder that the wheel ships, and checks its chat template.

Weights are written in bfloat16 under the names of ``LlamaForCausalLM`` (tied: no ``lm_head``). Usage:
``python -m demo.export CHECKPOINT OUT_DIR``; the tokenizer's files must be in OUT_DIR already.
"""

import json
import sys
from pathlib import Path
from random import Random
from typing import Any

import torch
from jinja2.sandbox import ImmutableSandboxedEnvironment
from safetensors.torch import save_file
from tokenizers import Tokenizer

from demo.corpus import chats, tools
from demo.corpus.dialog import EOS, IM_END, IM_START, Exchange, dumps, render_chat
from demo.model import DemoConfig


def write_json(path: Path, value: dict[str, Any]) -> None:
    """One JSON file, indented."""
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def write_model(checkpoint: Path, folder: Path) -> dict[str, Any]:
    """Weights and configuration; returns what the training cost."""
    data = torch.load(checkpoint, map_location="cpu")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = DemoConfig(vocab_size=tokenizer.get_vocab_size())
    state = {name: weight.detach().to(torch.bfloat16).contiguous() for name, weight in data["model"].items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    write_json(folder / "config.json", config.to_hf())
    stops = [tokenizer.token_to_id(EOS), tokenizer.token_to_id(IM_END)]
    write_json(folder / "generation_config.json", {"do_sample": False, "eos_token_id": stops, "pad_token_id": stops[0]})
    return {**data["cost"], "parameters": sum(weight.numel() for weight in state.values())}


def template_of(folder: Path) -> Any:
    """The chat template, compiled in a sandbox as servers do it."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = dumps
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    return environment.from_string(config["chat_template"])


def as_messages(exchange: Exchange) -> list[dict[str, Any]]:
    """The exchange as chat messages, calls as ``tool_calls``."""
    messages: list[dict[str, Any]] = []
    if exchange.system is not None:
        messages.append({"role": "system", "content": exchange.system})
    for role, text in exchange.turns:
        message: dict[str, Any] = {
            "role": role,
            "content": [{"type": "text", "text": text}] if role == "user" else text,
        }
        if role == "assistant" and text.startswith("<tool_call>"):
            calls = [part.split("\n</tool_call>")[0] for part in text.split("<tool_call>\n")[1:]]
            message = {"role": role, "content": None, "tool_calls": [{"function": json.loads(call)} for call in calls]}
        messages.append(message)
    return messages


def check_template(folder: Path, rounds: int = 300) -> None:
    """Compare the template's text with the training documents' text."""
    template, rng = template_of(folder), Random(5)
    for index in range(rounds):
        exchange = tools.tool_exchange(rng) if index % 2 else chats.conversation(rng)
        exchange.thinking = None
        wanted = "".join(text for text, _ in render_chat(exchange))
        written = template.render(
            messages=as_messages(exchange), tools=exchange.tools or None, add_generation_prompt=False
        )
        assert written == wanted, f"template differs:\n{written}\n--- from ---\n{wanted}"
    end = template.render(messages=[{"role": "developer", "content": "x"}], add_generation_prompt=True)
    assert end == f"{IM_START}system\nx{IM_END}\n{IM_START}assistant\n", end


def main() -> None:
    """Export the checkpoint given on the command line into the given folder."""
    checkpoint, folder = Path(sys.argv[1]), Path(sys.argv[2])
    cost = write_model(checkpoint, folder)
    check_template(folder)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(json.dumps({**cost, "bytes": size}))


if __name__ == "__main__":
    main()
