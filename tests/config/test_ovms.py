"""OpenVINO Model Server's files: every setting acts, is noted or is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dragoman.config.engine_options import OPTIONS
from dragoman.config.ovms import read_graph
from dragoman.config.resolve import Config
from dragoman.config.several import resolve_all
from dragoman.config.sources import Given
from tests.config.resolving import problems_of
from tests.support.tables import table

GRAPH = """
input_stream: "HTTP_REQUEST_PAYLOAD:input"
node: {
  name: "LLMExecutor"
  calculator: "HttpLLMCalculator"
  input_stream_info: { tag_index: 'LOOPBACK:0', back_edge: true }
  node_options: {
    [type.googleapis.com / mediapipe.LLMCalculatorOptions]: {
      %s
    }
  }
  input_stream_handler {
    options { [mediapipe.SyncSetInputStreamHandlerOptions.ext] { sync_set { tag_index: "LOOPBACK:0" } } }
  }
}
"""
PATHS = 'models_path: "./"'


def write_graph(directory: Path, options: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "graph.pbtxt").write_text(GRAPH % options, encoding="utf-8")
    return directory


def write_config(directory: Path, **content: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(content), encoding="utf-8")
    return directory


def served(directory: Path, *more: Given) -> tuple[Config, ...]:
    """The models of `dragoman serve DIRECTORY`."""
    line = (Given("MODEL_DIR", "option.model_id", str(directory), "command line"), *more)
    return resolve_all(line, {}, directory / "demo", directory / "none").models


def problems(directory: Path) -> list[str]:
    return problems_of(directory, lambda: served(directory))


@table(
    ("options", "name", "value"),
    [
        ("cache_size: 3", "kv_cache_gb", 3.0),
        ("cache_size: 0", "kv_cache_gb", None),
        ("max_num_seqs: 16", "max_num_seqs", 16),
        ("max_num_batched_tokens: 1024", "max_batch_tokens", 1024),
        ("best_of_limit: 7", "max_best_of", 7),
        ("enable_prefix_caching: false", "prefix_cache", "off"),
        ("enable_prefix_caching: true", "prefix_cache", "auto"),
        ('tool_parser: "hermes3"', "tool_call_parser", "hermes"),
        ('tool_parser: "llama3"', "tool_call_parser", "llama3_json"),
        ('response_parser: "gptoss"', "reasoning_parser", "gpt_oss"),
        ('reasoning_parser: "qwen3"', "reasoning_parser", "think"),
        ("""plugin_config: '{"KV_CACHE_PRECISION": "u8"}'""", "kv_dtype", "u8"),
        ("""plugin_config: '{"KV_CACHE_PRECISION": "f16"}'""", "kv_dtype", "auto"),
        ("""plugin_config: '{"KV_CACHE_PRECISION": "u4"}'""", "kv_dtype", "u8"),
        ("""plugin_config: '{"INFERENCE_NUM_THREADS": 3}'""", "threads", 3),
        ("""plugin_config: '{"CACHE_DIR": "/tmp/kept"}'""", "cache_dir", Path("/tmp/kept")),
        ("""plugin_config: '{"prompt_lookup": true}'""", "speculation", "lookup"),
        ("""plugin_config: '{"INFERENCE_PRECISION_HINT": "f32"}'""", "dtype", "f32"),
    ],
)
def test_an_option_that_means_the_same_here_acts(options: str, name: str, value: object, tmp_path: Path) -> None:
    [config] = served(write_graph(tmp_path / "model", f"{PATHS} {options}"))
    option = next(option for option in OPTIONS if option.name == name)
    assert config.value(option) == value
    if value != option.default:
        assert config.origins[name].source.startswith(f"{tmp_path}/model/graph.pbtxt line 9")


@table(
    ("options", "notice"),
    [
        ('device: "GPU"', "device=GPU (graph.pbtxt line 9): no effect here; the model runs on the CPU"),
        ("dynamic_split_fuse: false", "dynamic_split_fuse=false (graph.pbtxt line 9): no effect here; prompts are"),
        ("block_size: 16", "block_size=16 (graph.pbtxt line 9): no effect here; blocks have 32 tokens"),
        ("max_tokens_limit: 5", "max_tokens_limit=5 (graph.pbtxt line 9): no effect here; option.max_model_len"),
        ("pipeline_type: VLM_CB", "pipeline_type=VLM_CB (graph.pbtxt line 9): no effect here; what the model takes in"),
        ("cache_eviction_config { start_size: 32 }", "cache_eviction_config={...} (graph.pbtxt line 9): no effect"),
        ('tool_parser: "of_2030"', "tool_parser=of_2030 (graph.pbtxt line 9): no effect here; the chat template"),
        ("of_2030: 1", "of_2030=1 (graph.pbtxt line 9): no effect here; it is unknown"),
        (
            """plugin_config: '{"NUM_STREAMS": 4}'""",
            "NUM_STREAMS=4 (graph.pbtxt line 9, plugin_config): no effect here; the runtime's settings follow",
        ),
        (
            """plugin_config: '{"DYNAMIC_QUANTIZATION_GROUP_SIZE": "64"}'""",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE=64 (graph.pbtxt line 9, plugin_config): no effect here; activations are",
        ),
        (
            """plugin_config: '{"KV_CACHE_PRECISION": "u4"}'""",
            "KV_CACHE_PRECISION=u4 (graph.pbtxt line 9, plugin_config): no effect here; the smallest type",
        ),
    ],
)
def test_an_option_without_effect_is_noted_with_the_reason(options: str, notice: str, tmp_path: Path) -> None:
    [config] = served(write_graph(tmp_path / "model", f"{PATHS} {options}"))
    [found] = config.notices
    assert found.replace(f"{tmp_path}/model/", "").startswith(notice)


@table(
    "options",
    [
        'device: "CPU"', "dynamic_split_fuse: true", "block_size: 32", "pipeline_type: LM_CB", "chat_template_mode: JINJA",
        "enable_tool_guided_generation: false", "draft_eagle3_mode: false", 'plugin_config: ""',
        """plugin_config: '{"PERFORMANCE_HINT": "LATENCY"}'""",
    ],
)  # fmt: skip
def test_an_option_for_the_present_behaviour_is_not_noted(options: str, tmp_path: Path) -> None:
    [config] = served(write_graph(tmp_path / "model", f"{PATHS} {options}"))
    assert config.notices == ()


@table(
    ("options", "problem"),
    [
        ("cache_size: -1", "cache_size=-1 (graph.pbtxt line 9): must be a number > 0"),
        ("max_num_seqs: many", "max_num_seqs=many (graph.pbtxt line 9): must be an integer from 1 to 4096"),
        ("plugin_config: '[]'", "plugin_config=[] (graph.pbtxt line 9): must be a JSON object"),
        (
            "draft_eagle3_mode: true",
            "draft_eagle3_mode=true (graph.pbtxt line 9): draft models of this kind do not run",
        ),
        ('models_path: "missing"', "models_path=missing (graph.pbtxt line 9): must be a directory on this machine"),
        ("max_num_seqs", "graph.pbtxt: line 10: `}` stands where a colon or a message is expected"),
    ],
)
def test_an_impossible_option_is_refused_with_its_place(options: str, problem: str, tmp_path: Path) -> None:
    directory = write_graph(tmp_path / "model", options if "models_path" in options else f"{PATHS} {options}")
    [found] = problems(directory)
    assert found.replace(f"{directory / 'missing'}", "missing").startswith(problem)


def test_a_graph_without_an_llm_is_refused(tmp_path: Path) -> None:
    (tmp_path / "graph.pbtxt").write_text('node { calculator: "EmbeddingsCalculatorOV" }', encoding="utf-8")
    [found] = problems(tmp_path)
    assert found.startswith("graph.pbtxt: has no node with mediapipe.LLMCalculatorOptions")


def test_paths_count_from_the_graph_and_the_directory_names_the_model(tmp_path: Path) -> None:
    directory = write_graph(tmp_path / "llama", 'models_path: "./1" draft_models_path: "draft"')
    for name in ("1", "draft"):
        (directory / name).mkdir()
    [config] = served(directory)
    assert (config.name, config.model_dir.resolve()) == ("llama", directory / "1")
    assert config.speculation.draft_model == directory / "draft"


def test_a_directory_of_versions_means_the_highest(tmp_path: Path) -> None:
    for version in ("1", "10", "9"):
        write_config(tmp_path / "llama" / version)
    [config] = served(tmp_path / "llama")
    assert (config.name, config.model_dir) == ("llama", tmp_path / "llama" / "10")


def test_serving_properties_and_the_command_line_precede_the_graph(tmp_path: Path) -> None:
    directory = write_graph(tmp_path / "model", f"{PATHS} max_num_seqs: 16 cache_size: 3")
    (directory / "serving.properties").write_text("option.max_rolling_batch_size=8\n", encoding="utf-8")
    [config] = served(directory, Given("--kv-cache-gb", "option.kv_cache_gb", "2", "command line"))
    assert (config.engine.max_num_seqs, config.engine.kv_cache_gb) == (8, 2.0)


def test_a_list_of_models_is_served_as_one_process(tmp_path: Path) -> None:
    write_graph(tmp_path / "first", PATHS)
    write_graph(tmp_path / "second" / "deep", f"{PATHS} max_num_seqs: 3")
    write_config(
        tmp_path,
        model_config_list=[{"config": {"name": "a", "base_path": "first"}}, {"config": {"name": "resnet", "nireq": 2}}],
        mediapipe_config_list=[
            {"name": "b", "base_path": "second", "graph_path": "deep/graph.pbtxt", "subconfig": "s.json"}
        ],
        monitoring={"metrics": {"enable": True}},
    )
    first, second = served(tmp_path)
    assert [(config.name, config.model_dir.resolve()) for config in (first, second)] == [
        ("a", tmp_path / "first"),
        ("b", tmp_path / "second" / "deep"),
    ]
    assert (first.engine.max_num_seqs, second.engine.max_num_seqs) == (64, 3)
    told = [notice.split(":")[0].replace(str(tmp_path), "") for notice in first.notices]
    assert told == ['monitoring={"metrics"', "resnet (/config.json)", "subconfig=s.json (/config.json)"]


@table(
    ("content", "problem"),
    [
        ({"model_config_list": []}, "config.json: lists no model that can be served"),
        ({"mediapipe_config_list": [{"base_path": "x"}]}, "config.json: entry 1 of mediapipe_config_list must be an"),
        ({"model_config_list": 3}, "config.json: entry 1 of model_config_list must be an object with a name"),
        (
            {"mediapipe_config_list": [{"name": "x", "base_path": 3}]},
            "config.json: base_path and graph_path of x must be",
        ),
    ],
)
def test_a_list_that_cannot_be_served_is_refused(content: Any, problem: str, tmp_path: Path) -> None:
    assert problems(write_config(tmp_path, **content))[0].startswith(problem)


def test_a_models_own_config_is_not_a_list_of_models(tmp_path: Path) -> None:
    [config] = served(write_config(tmp_path / "model", architectures=["LlamaForCausalLM"]))
    assert config.name == "model"
    assert read_graph(tmp_path / "model").givens == []
