"""An InternVL in OpenGVLab's own layout, with the files that such checkpoints have, in a server of its own."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from tokenizers.pre_tokenizers import ByteLevel

from dragoman.models import ModelOptions
from tests.support.server_process import ServerProcess, serve
from tests.support.vision_checkpoint import draw, read_vision_case, write_vision_case
from tests.support.vision_model import SeeingModel

CASE = "internvl_chat"
NUM_TOKENS = 4
LETTERS = sorted(ByteLevel.alphabet())
PAIRS = [f"{first} {second}" for first, second in zip(LETTERS[33:80], LETTERS[33:80], strict=True)]
NUM_WORDS = len(LETTERS) + len(PAIRS)
START, END = "<|im_start|>", "<|im_end|>"
ADDED = ("<|endoftext|>", START, END, "<quad>", "</quad>", "<ref>", "</ref>", "<IMG_CONTEXT>", "<img>", "</img>")
IDS = {text: NUM_WORDS + place for place, text in enumerate(ADDED)}
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def write_tokenizer(directory: Path) -> None:
    """vocab.json, merges.txt and what lies beside them: there is no tokenizer.json in these checkpoints."""
    words = {text: token_id for token_id, text in enumerate([*LETTERS, *(pair.replace(" ", "") for pair in PAIRS)])}
    described = {
        "added_tokens_decoder": {str(token_id): {"content": text, "special": True} for text, token_id in IDS.items()},
        "tokenizer_class": "Qwen2Tokenizer",
        "add_bos_token": False,
        "eos_token": END,
        "chat_template": TEMPLATE,
    }
    (directory / "vocab.json").write_text(json.dumps(words), encoding="utf-8")
    (directory / "merges.txt").write_text("\n".join(["#version: 0.2", *PAIRS]), encoding="utf-8")
    (directory / "added_tokens.json").write_text(json.dumps(IDS), encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(described), encoding="utf-8")


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> SeeingModel:
    """The same model by itself; what it computes is compared with what transformers computed in tests/models."""
    return SeeingModel(CASE, tmp_path_factory.mktemp("oracle"), ModelOptions(weight_type="f32"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("InternVL3-1B")
    case = read_vision_case(CASE)
    del case["config"]["img_context_token_id"]
    write_tokenizer(write_vision_case(CASE, case, directory))
    with serve(str(directory), "--name", "internvl", "--dtype", "f32", "--max-num-seqs", "8") as running:
        yield running


def image(name: str, detail: str = "auto") -> dict[str, Any]:
    picture, file = draw(read_vision_case(CASE)["pictures"][name]), io.BytesIO()
    Image.frombytes("RGB", (picture.width, picture.height), picture.rgb).save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url, "detail": detail}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def answer(server: ServerProcess, *parts: Any, path: str = "/v1/chat/completions") -> tuple[list[float], int]:
    """The log-probabilities of the answer's tokens, and how many tokens the prompt was counted to have."""
    body = {
        "model": "internvl", "messages": [{"role": "user", "content": list(parts)}], "max_tokens": NUM_TOKENS,
        "temperature": 0, "logprobs": True, "ignore_eos": True,
    }  # fmt: skip
    found = httpx.post(f"{server.base_url}{path}", json=body, timeout=60)
    assert found.status_code == 200, found.text
    content = found.json()["choices"][0]["logprobs"]["content"]
    assert len(content) == NUM_TOKENS
    return [each["logprob"] for each in content], found.json()["usage"]["prompt_tokens"]


def letters(words: str) -> list[int]:
    """The tokens of a text in which no letter stands twice in a row."""
    return [
        LETTERS.index(letter)
        for letter in ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(words)[0][0]
    ]


def expected(oracle: SeeingModel, *pieces: str) -> tuple[list[float], int]:
    """What the model says to a message of these pieces: names of pictures behind "#", or texts."""
    names = [piece[1:] for piece in pieces if piece.startswith("#")]
    prompt = [IDS[START], *letters("user\n")]
    for piece in pieces:
        if piece.startswith("#"):
            prompt += [IDS["<img>"], *[310] * len(oracle.embed(oracle.picture(piece[1:]))), IDS["</img>"]]
        else:
            prompt += letters(piece)
    prompt += [IDS[END], *letters("\n"), IDS[START], *letters("as"), *letters("sistant\n")]
    found, ids = [], [*prompt]
    for _ in range(NUM_TOKENS):
        logits = oracle.logits(ids, [oracle.picture(name) for name in names], np.zeros((3, 0), dtype=np.int64))[-1]
        found.append(float(logits.max() - np.logaddexp.reduce(logits.astype(np.float64))))
        ids.append(int(np.argmax(logits)))
    return found, len(prompt)


def assert_equal(found: tuple[list[float], int], wanted: tuple[list[float], int]) -> None:
    assert found[1] == wanted[1]
    assert found[0] == pytest.approx(wanted[0], abs=1e-3)


def test_texts_alone_are_answered(server: ServerProcess, oracle: SeeingModel) -> None:
    assert_equal(answer(server, text("What is it?")), expected(oracle, "What is it?"))


def test_pictures_stand_before_their_message_as_the_layout_has_it(server: ServerProcess, oracle: SeeingModel) -> None:
    wanted = expected(oracle, "#large", "\n", "#tall", "\nCompare!")
    for path in ("/v1/chat/completions", "/v3/chat/completions", "/invocations"):
        assert_equal(answer(server, image("large"), image("tall"), text("Compare!"), path=path), wanted)
    assert_equal(answer(server, text("Compare!"), image("large"), image("tall")), wanted)


def test_a_text_may_say_where_they_go(server: ServerProcess, oracle: SeeingModel) -> None:
    wanted = expected(oracle, "One: ", "#grey", "\nTwo: ", "#wide", "\nSame?")
    asked = text("One: <image>\nTwo: <image>\nSame?")
    assert_equal(answer(server, asked, image("grey"), image("wide")), wanted)


def test_requests_side_by_side_are_answered_as_one_at_a_time(server: ServerProcess) -> None:
    asked = [[image("pixel"), text("a")], [text("b")], [image("wide"), image("large"), text("c")]]
    alone = [answer(server, *parts) for parts in asked]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda parts: answer(server, *parts), asked * 2))
    for found, wanted in zip(together, alone * 2, strict=True):
        assert_equal(found, wanted)


def test_what_a_prompt_may_not_hold_is_refused(server: ServerProcess) -> None:
    message = {"role": "user", "content": [text("<image><image>"), image("pixel")]}
    found = httpx.post(
        f"{server.base_url}/v1/chat/completions", json={"model": "internvl", "messages": [message]}, timeout=60
    )
    assert found.status_code == 400
    assert "must hold <image> at most 1 times" in found.text
