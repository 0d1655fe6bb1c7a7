"""Asks the demo vision model about freshly drawn pictures that training never saw, in wordings that it never saw.

Pictures, pairs of shape and color, numbers and wordings include the held-out ones; an answer counts only if it is right
word for word. Usage: ``python -m demo.evaluate_pictures --url http://127.0.0.1:8080`` asks a running server by its OpenAI
chat API, ``--transformers DIR`` asks the same through transformers, ``--checkpoint FILE`` a checkpoint of the training.
The last line is JSON.
"""

import argparse
import base64
import io
import json
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from PIL import Image

from demo.pictures.questions import Asked, questions, wording
from demo.pictures.render import draw
from demo.pictures.scene import HELD_OUT_NUMBERS, HELD_OUT_PAIRS, Scene, draw_scene
from demo.pictures.wordings import HELD_OUT, NO_PICTURE

MOST_TOKENS = 40
SHOWN = 3
# Asked of pictures with several shapes too, and graded apart there.
OF_SHAPES = ("describe", "color", "which", "count", "count_shape", "count_color", "where", "at", "exists")
Ask = Callable[[Image.Image | None, str, bool], str]


@dataclass(frozen=True)
class Case:
    """A question with its right answer; ``comes_first``: the picture stands before the text. No picture: none is sent."""

    kind: str
    question: str
    answer: str
    scene: Scene | None
    comes_first: bool

    def picture(self) -> Image.Image | None:
        """The picture, drawn."""
        return draw(self.scene) if self.scene else None


def label_of(asked: Asked, scene: Scene) -> str:
    """The kind of question; of pictures with several shapes apart, since these are harder."""
    return f"{asked.kind}, several shapes" if len(scene.items) > 1 else asked.kind


def cases(each: int, rng: Random) -> list[Case]:
    """``each`` questions under every label, at most two about a picture, and as many about pictures that are not there."""
    wanted = dict.fromkeys([*HELD_OUT, *(f"{kind}, several shapes" for kind in OF_SHAPES)], each)
    out = []
    while any(wanted.values()):
        scene = draw_scene(rng, held_out=True)
        pool = [asked for asked in questions(scene, rng) if wanted.get(label_of(asked, scene))]
        for asked in rng.sample(pool, min(2, len(pool))):
            if wanted[label_of(asked, scene)]:
                wanted[label_of(asked, scene)] -= 1
                out.append(case(asked, scene, rng))
    for _ in range(each):
        asked = rng.choice(questions(draw_scene(rng, held_out=True), rng))
        out.append(Case("no picture", wording(asked, rng, held_out=True), NO_PICTURE, None, True))
    return out


def case(asked: Asked, scene: Scene, rng: Random) -> Case:
    """The question in a held-out wording."""
    return Case(label_of(asked, scene), wording(asked, rng, held_out=True), asked.answer, scene, rng.random() < 0.5)


def is_unseen(scene: Scene) -> bool:
    """Whether it holds a pair or a number that training never saw."""
    if scene.number:
        return scene.number.text in HELD_OUT_NUMBERS
    return any((item.shape, item.color) in HELD_OUT_PAIRS for item in scene.items)


def messages_of(question: str, picture: dict[str, Any] | None, comes_first: bool) -> list[dict[str, Any]]:
    """A chat of one user's turn with the picture's part before or after the text."""
    text = {"type": "text", "text": question}
    parts = [text] if picture is None else [picture, text] if comes_first else [text, picture]
    return [{"role": "user", "content": parts}]


def through_server(url: str) -> Ask:
    """Asks a running server; the picture goes as a PNG in a data URL."""

    def ask(picture: Image.Image | None, question: str, comes_first: bool) -> str:
        part = None
        if picture is not None:
            file = io.BytesIO()
            picture.save(file, "PNG")
            data = base64.b64encode(file.getvalue()).decode()
            part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        body = {
            "model": "demo-vision",
            "messages": messages_of(question, part, comes_first),
            "max_tokens": MOST_TOKENS,
            "temperature": 0,
        }
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as response:
            return str(json.load(response)["choices"][0]["message"]["content"])

    return ask


def through_transformers(folder: Path) -> Ask:
    """Asks the exported model through transformers, in single precision."""
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor

    processor = AutoProcessor.from_pretrained(folder, use_fast=False)
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()

    def ask(picture: Image.Image | None, question: str, comes_first: bool) -> str:
        messages = messages_of(question, {"type": "image"} if picture else None, comes_first)
        prompt = processor.apply_chat_template(messages, add_generation_prompt=True)
        inputs = processor(text=prompt, images=[picture] if picture else None, return_tensors="pt")
        with torch.no_grad():
            ids = model.generate(**inputs, max_new_tokens=MOST_TOKENS, do_sample=False)
        return str(processor.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))

    return ask


def from_checkpoint(path: Path) -> Ask:
    """Asks a checkpoint, with weights as the export rounds them and the positions of transformers 5."""
    import torch
    from tokenizers import Tokenizer

    from demo.model import DemoConfig
    from demo.pictures.prepare import prepare
    from demo.vision_model import EXPANSION, VOCABULARY, DemoVision, TowerConfig

    tokenizer = Tokenizer.from_file("src/dragoman/demo_vision_model/tokenizer.json")
    model = DemoVision(TowerConfig(), DemoConfig(vocab_size=VOCABULARY)).eval()
    state = torch.load(path)["model"]
    model.load_state_dict({name: weight.to(torch.bfloat16).float() for name, weight in state.items()})

    def ask(picture: Image.Image | None, question: str, comes_first: bool) -> str:
        text = question
        if picture is not None:
            text = EXPANSION + question if comes_first else question + EXPANSION
        ids = tokenizer.encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n").ids
        start = len(ids)
        with torch.no_grad():
            pixels = None if picture is None else torch.from_numpy(prepare(picture).copy())[None]
            embeddings = None if pixels is None else model.embed(pixels, shifted=False)
            while len(ids) - start < MOST_TOKENS and (len(ids) == start or ids[-1] not in (0, 2)):
                states = model.hidden(torch.tensor([ids]), embeddings)
                ids.append(int(model.text.logits(states[:, -1]).argmax()))
        return str(tokenizer.decode(ids[start:]))

    return ask


def share(hits: list[bool]) -> float:
    """The share of those that are right."""
    return round(sum(hits) / max(1, len(hits)), 3)


def grade(asked: list[Case], ask: Ask) -> dict[str, float]:
    """The share of right answers by kind, over all with a picture, and over those with something unseen; prints misses."""
    hits: dict[str, list[bool]] = {}
    about: list[bool] = []
    unseen: list[bool] = []
    for one in asked:
        text = ask(one.picture(), one.question, one.comes_first).strip()
        right = text == one.answer
        known = hits.setdefault(one.kind, [])
        if not right and known.count(False) < SHOWN:
            print(f"  miss [{one.kind}] {one.question!r} -> {text!r}, not {one.answer!r}", flush=True)
        known.append(right)
        if one.scene:
            about.append(right)
            if is_unseen(one.scene):
                unseen.append(right)
    return {
        **{kind: share(known) for kind, known in hits.items()},
        "all with a picture": share(about),
        "of these unseen pairs and numbers": share(unseen),
        "questions": len(asked),
    }


def main() -> None:
    """Ask everything and print the shares."""
    parser = argparse.ArgumentParser(description="Evaluate the demo vision model.")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--url", help="a running server")
    where.add_argument("--transformers", type=Path, metavar="DIR", help="the exported model")
    where.add_argument("--checkpoint", type=Path, metavar="FILE", help="a checkpoint of the training")
    parser.add_argument("--each", type=int, default=40, help="questions of each kind")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    if args.url:
        ask = through_server(args.url)
    else:
        ask = through_transformers(args.transformers) if args.transformers else from_checkpoint(args.checkpoint)
    result = grade(cases(args.each, Random(f"evaluation {args.seed}")), ask)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
