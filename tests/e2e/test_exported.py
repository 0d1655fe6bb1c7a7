"""A directory of OpenVINO Model Server, with its config.json, graph.pbtxt and exported graph, served by this one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import openvino as ov
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.support.exported_model import write_exported
from tests.support.server_process import ServerProcess, serve

PROMPT = [5, 17, 200, 33, 61, 8, 90]
NUM_TOKENS = 8
GRAPH = """
node: {
  calculator: "HttpLLMCalculator"
  node_options: {
    [type.googleapis.com / mediapipe.LLMCalculatorOptions]: {
      models_path: "./1", max_num_seqs: 8, device: "GPU"
      plugin_config: '{"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}'
    }
  }
}
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that OVMS is given as --config_path."""
    directory = tmp_path_factory.mktemp("repository")
    model = write_exported("qwen3", directory / "small" / "1")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.save(str(model / "tokenizer.json"))
    (directory / "small" / "graph.pbtxt").write_text(GRAPH, encoding="utf-8")
    listed = {"model_config_list": [], "mediapipe_config_list": [{"name": "exported", "base_path": "small"}]}
    (directory / "config.json").write_text(json.dumps(listed), encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def running(repository: Path) -> Iterator[ServerProcess]:
    with serve(str(repository)) as server:
        yield server


def test_greedy_tokens_are_those_of_the_graph_as_it_was_exported(running: ServerProcess, repository: Path) -> None:
    body = {
        "model": "exported", "prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0, "logprobs": 1,
        "return_tokens_as_token_ids": True, "ignore_eos": True,
    }  # fmt: skip
    answer = httpx.post(f"{running.base_url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    found = [int(token.removeprefix("token_id:")) for token in answer.json()["choices"][0]["logprobs"]["tokens"]]
    assert found == stateful_tokens(repository / "small" / "1" / "openvino_model.xml")


def stateful_tokens(graph: Path) -> list[int]:
    """What the graph chooses, run by itself."""
    compiled = ov.Core().compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"})
    request = compiled.create_infer_request()
    tokens, new = list(PROMPT), list(PROMPT)
    for _ in range(NUM_TOKENS):
        count = len(tokens)
        request.infer({
            "input_ids": np.array([new]),
            "attention_mask": np.ones((1, count), dtype=np.int64),
            "position_ids": np.arange(count - len(new), count)[None],
            "beam_idx": np.zeros(1, dtype=np.int32),
        })  # fmt: skip
        new = [int(np.argmax(request.get_output_tensor(0).data[0, -1]))]
        tokens += new
    return tokens[len(PROMPT) :]


def test_the_start_tells_what_of_the_graph_has_no_effect(running: ServerProcess) -> None:
    assert any("device=GPU" in line and "the model runs on the CPU" in line for line in running.output)
