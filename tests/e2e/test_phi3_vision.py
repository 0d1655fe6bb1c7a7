"""An exported Phi-3.5-vision in a server of its own: chats with pictures and with texts alone."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openvino as ov
import pytest
from PIL import Image

from tests.support.family_checkpoint import Array
from tests.support.seeing_export import BOS, PARTS, PLACEHOLDER, read_seeing_case, write_seeing_export
from tests.support.server_process import ServerProcess, serve
from tests.support.vision_checkpoint import draw
from tests.support.vision_model import embedded

NUM_TOKENS = 6
PICTURES = read_seeing_case()["pictures"]
SETTINGS = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_seeing_export(tmp_path_factory.mktemp("phi-3.5-vision-ov"))


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[ServerProcess]:
    with serve(str(directory), "--name", "phi", "--dtype", "f32", "--max-num-seqs", "8") as running:
        yield running


def image(name: str, detail: str = "auto") -> dict[str, Any]:
    picture = draw(PICTURES[name])
    return image_of(Image.frombytes("RGB", (picture.width, picture.height), picture.rgb), detail)


def image_of(picture: Image.Image, detail: str = "auto") -> dict[str, Any]:
    file = io.BytesIO()
    picture.save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url, "detail": detail}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def answer(server: ServerProcess, *parts: Any, path: str = "/v3/chat/completions") -> tuple[list[float], int]:
    """The log-probabilities of the answer's tokens, and how many tokens the prompt was counted to have."""
    body = {
        "model": "phi", "messages": [{"role": "user", "content": list(parts)}], "max_tokens": NUM_TOKENS, "temperature": 0,
        "logprobs": True, "ignore_eos": True,
    }  # fmt: skip
    found = httpx.post(f"{server.base_url}{path}", json=body, timeout=60)
    assert found.status_code == 200, found.text
    content = found.json()["choices"][0]["logprobs"]["content"]
    assert len(content) == NUM_TOKENS
    return [each["logprob"] for each in content], found.json()["usage"]["prompt_tokens"]


# --- the four graphs, run by themselves -------------------------------------------------------------------------------


class Graphs:
    """Continues prompts with the graphs as they were exported, pictures in the places that are told."""

    def __init__(self, directory: Path) -> None:
        core = ov.Core()
        self._graphs = [core.compile_model(directory / f"{part}.xml", "CPU", SETTINGS) for part in PARTS]

    def answer(self, prompt: list[int], embeddings: Array) -> tuple[list[float], int]:
        """As `answer` of a server, of a prompt whose placeholders stand for the embeddings in their order."""
        language, table = self._graphs[0].create_infer_request(), self._graphs[1]
        vectors = table(np.array([prompt]))[0].copy()
        vectors[0, np.array(prompt) == PLACEHOLDER] = embeddings
        past, found = 0, list[float]()
        for _ in range(NUM_TOKENS):
            end = past + vectors.shape[1]
            values = {
                "inputs_embeds": vectors,
                "attention_mask": np.ones((1, end), dtype=np.int64),
                "position_ids": np.arange(past, end)[None],
                "beam_idx": np.zeros(1, dtype=np.int32),
            }
            language.infer(values)
            logits = language.get_output_tensor(0).data[0, -1]
            found.append(float(logits.max() - np.logaddexp.reduce(logits)))
            vectors, past = table(np.array([[np.argmax(logits)]]))[0], end
        return found, len(prompt)


def letters(words: str) -> list[int]:
    """The tokens of a text without what it begins with."""
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = sorted(ByteLevel.alphabet())
    coded = ByteLevel(add_prefix_space=False).pre_tokenize_str(words)
    return [alphabet.index(letter) + 3 for piece, _ in coded for letter in piece]


def assert_equal(found: tuple[list[float], int], expected: tuple[list[float], int]) -> None:
    assert found[0] == pytest.approx(expected[0], abs=1e-3)
    assert found[1] == expected[1]


def test_texts_alone_are_answered_as_the_graphs_answer_them(server: ServerProcess, directory: Path) -> None:
    prompt = [301, *letters("\nWhat is it?"), 302, *letters("\n"), 303, *letters("\n")]
    expected = Graphs(directory).answer(prompt, np.zeros((0, 64), dtype=np.float32))
    assert_equal(answer(server, text("What is it?")), expected)


def test_pictures_are_answered_as_the_graphs_answer_them(server: ServerProcess, directory: Path) -> None:
    from dragoman.models import ModelOptions, load_model

    tower = load_model(directory, ModelOptions(weight_type="f32")).tower
    assert tower is not None
    wide, odd = (embedded(tower, draw(PICTURES[name])) for name in ("wide", "odd"))
    begin = [BOS, 301, *letters("\n")]
    between, after = [BOS, *letters("\n")], [BOS, *letters("\nCompare!"), 302, *letters("\n"), 303, *letters("\n")]
    prompt = [*begin, *[PLACEHOLDER] * len(wide), *between, *[PLACEHOLDER] * len(odd), *after]
    expected = Graphs(directory).answer(prompt, np.concatenate([wide, odd]))
    for path in ("/v1/chat/completions", "/v3/chat/completions", "/invocations"):
        assert_equal(answer(server, image("wide"), image("odd"), text("Compare!"), path=path), expected)
    named = text("<|image_2|>\n<|image_1|>\nCompare!")
    assert_equal(answer(server, named, image("odd"), image("wide")), expected)


def test_low_detail_takes_less_room(server: ServerProcess) -> None:
    (_, usual), (_, low) = (answer(server, image("exact", detail)) for detail in ("auto", "low"))
    assert usual - low == 757 - 313


def test_requests_side_by_side_are_answered_as_one_at_a_time(server: ServerProcess) -> None:
    asked = [
        [image("pixel"), text("a")],
        [text("b")],
        [image("line"), image("large"), text("c")],
        [image("pixel"), text("d")],
    ]
    alone = [answer(server, *parts) for parts in asked]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda parts: answer(server, *parts), asked * 2))
    for found, expected in zip(together, alone * 2, strict=True):
        assert_equal(found, expected)


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([text("<|image_2|>"), image("pixel")], "once <|image_1|>, once for each image"),
        ([text("<|image|>"), image("pixel")], "<|image|> 757 times, only for its images, got 758"),
        ([image("grey")] * 6, "Number of prompt tokens: 4542 exceeds model max length: 4096"),
        ([image_of(Image.new("RGB", (1400, 1)))], "allowed: none with a side more than 1344 times the other"),
    ],
)
def test_what_cannot_be_is_refused(parts: list[Any], problem: str, server: ServerProcess) -> None:
    body = {"model": "phi", "messages": [{"role": "user", "content": parts}], "max_tokens": 1}
    found = httpx.post(f"{server.base_url}/v3/chat/completions", json=body, timeout=60)
    assert found.status_code == 400
    assert problem in found.text
