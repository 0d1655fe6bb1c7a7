"""From sources to one configuration: precedence, names, unknown options, bad values."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.arguments import read_arguments
from dragoman.config.combinations import Origin
from dragoman.config.engine_options import OPTIONS
from dragoman.config.foreign import FOREIGN_OPTIONS, FOREIGN_VARIABLES
from dragoman.config.option import Option
from dragoman.config.resolve import Config, ConfigError, resolve
from tests.config.resolving import problems_of
from tests.support.tables import table


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "my-model"
    directory.mkdir()
    return directory


def given(model_dir: Path, *, line: str = "", file: str | None = None, env: Mapping[str, str] | None = None) -> Config:
    """The configuration of a command line, the text of a temporary serving.properties, and an environment."""
    path = model_dir / "serving.properties"
    if file is not None:
        path.write_text(file, encoding="utf-8")
    arguments = read_arguments(line.split())
    assert arguments.problems == ()
    try:
        return resolve(arguments.givens, env or {}, model_dir)
    finally:
        path.unlink(missing_ok=True)


def problems(model_dir: Path, **sources: Any) -> list[str]:
    return problems_of(model_dir, lambda: given(model_dir, **sources))


def example(option: Option) -> str:
    """A legal text that differs from the option's default."""
    for text in (
        "7",
        "true",
        "false",
        "17",
        "-17",
        "bf16",
        "all",
        "vllm",
        "0.26",
        "sse",
        "auto",
        "lmi",
        "debug",
        "json",
        "vllm,tgi",
        "none",
        "64",
        "some-name",
        "a.b:c",
        "grpc",
        "exit",
        '{"max_pixels":9}',
        "http://host:1/v1",
        "http://host:1",
        "name=/directory",
        "embed",
        "cls",
        "suffix",
        "plain",
        "openvino",
        "/prefix",
    ):
        try:
            if option.row.kind.parse(text) != option.default:
                return text
        except ValueError:
            continue
    raise AssertionError(f"no example for {option.name}")


# what the two others name is read at once, so it has to be there: they have tests of their own; merge_lora needs another
FLAGGED = [option for option in OPTIONS if option.flag and option.name not in ("config_file", "merge_lora")]
KEYED = [option for option in OPTIONS if option.key and option.name not in ("model_id", "config_file", "merge_lora")]


# --- precedence -------------------------------------------------------------------------------------------------------


def test_without_options_all_values_are_defaults(model_dir: Path) -> None:
    config = given(model_dir)
    assert set(config.origins.values()) == {Origin("default")}
    assert all(
        config.value(option) == option.default
        for option in OPTIONS
        if option.name not in ("name", "cache_dir", "prefix_store_dir")
    )
    assert config.model.cache_dir == Path.home() / ".cache" / "dragoman"
    assert config.engine.prefix_store_dir == config.model.cache_dir / "prefixes"


def test_the_file_precedes_the_environment_and_the_command_line_both(model_dir: Path) -> None:
    env = {"OPTION_DTYPE": "f32", "OPTION_MAX_BEST_OF": "3", "OPTION_MAX_MODEL_LEN": "64"}
    config = given(model_dir, line="--dtype int4", file="option.dtype=bf16\noption.max_best_of=4", env=env)
    assert (config.model.dtype, config.clients.max_best_of, config.model.max_model_len) == ("int4", 4, 64)
    assert config.origins["dtype"] == Origin("command line", "--dtype")
    assert config.origins["max_best_of"] == Origin(f"{model_dir}/serving.properties line 2", "option.max_best_of")
    assert config.origins["max_model_len"] == Origin("environment", "OPTION_MAX_MODEL_LEN")


def test_names_of_other_servers_count_only_if_the_own_variable_is_unset(model_dir: Path) -> None:
    env = {"MAX_BATCH_SIZE": "5", "OPTION_MAX_ROLLING_BATCH_SIZE": "6"}
    assert given(model_dir, env=env).engine.max_num_seqs == 6
    assert given(model_dir, env={"MAX_BATCH_SIZE": "5"}).engine.max_num_seqs == 5


def test_the_size_in_bytes_precedes_the_size_in_megabytes(model_dir: Path) -> None:
    env = {"SAGEMAKER_MAX_PAYLOAD_IN_MB": "2"}
    assert given(model_dir, env=env).server.max_request_size == 2 * 1024 * 1024
    assert given(model_dir, env={**env, "SAGEMAKER_MAX_REQUEST_SIZE": "99"}).server.max_request_size == 99


def test_the_last_of_two_equal_names_wins(model_dir: Path) -> None:
    config = given(model_dir, line="--port 1 --port 2", file="option.dtype=f32\noption.dtype=bf16")
    assert (config.server.port, config.model.dtype) == (2, "bf16")


# --- names ------------------------------------------------------------------------------------------------------------


@table("option", FLAGGED, ids=lambda option: option.name)
def test_every_option_with_a_flag_acts_from_the_command_line(option: Option, model_dir: Path) -> None:
    text = example(option)
    config = given(model_dir, line=f"{option.flag}={text}")
    assert config.value(option) == option.row.kind.parse(text)


@table("option", KEYED, ids=lambda option: option.name)
def test_every_option_with_a_key_acts_from_the_file_and_from_its_variable(option: Option, model_dir: Path) -> None:
    text = example(option)
    from_environment = given(model_dir, env={option.variable: text})
    assert from_environment.origins[option.name] == Origin("environment", option.variable)
    from_file = given(model_dir, file=f"{option.key}={text}")
    assert from_file.origins[option.name].name == option.key
    assert from_file.value(option) == from_environment.value(option) == option.row.kind.parse(text)


@table(
    ("variable", "text", "name", "value"),
    [
        ("HF_MODEL_ID", "{dir}", "model_id", "{dir}"),
        ("MAX_BATCH_PREFILL_TOKENS", "77", "max_batch_tokens", 77),
        ("MAX_BATCH_SIZE", "8", "max_num_seqs", 8),
        ("MAX_CONCURRENT_REQUESTS", "9", "job_queue_size", 9),
        ("SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS", "60", "predict_timeout", 60.0),
        ("SAGEMAKER_BIND_TO_PORT", "9321", "port", 9321),
        ("PREDICT_TIMEOUT", "61", "predict_timeout", 61.0),
        ("DRAGOMAN_API_KEY", "secret", "api_key", "secret"),
        ("API_KEY", "secret", "api_key", "secret"),
        ("OPTION_ENABLE_PREFIX_CACHING", "false", "prefix_cache", "off"),
        ("OPTION_ENABLE_PREFIX_CACHING", "true", "prefix_cache", "auto"),
        ("OPTION_MAX_NUM_SEQS", "8", "max_num_seqs", 8),
        ("SERVING_INFERENCE_ADDRESS", "http://0.0.0.0:9000", "host", "0.0.0.0"),
        ("SERVING_INFERENCE_ADDRESS", "http://0.0.0.0:9000", "port", 9000),
        ("SERVING_MAX_DYNAMIC_BATCH_SIZE", "4", "batch_size", 4),
    ],
)
def test_aliases_set_the_option_they_stand_for(
    variable: str, text: str, name: str, value: object, model_dir: Path
) -> None:
    config = given(model_dir, env={variable: text.format(dir=model_dir)})
    option = next(option for option in OPTIONS if option.name == name)
    expected = Path(str(value).format(dir=model_dir)) if name == "model_id" else value
    assert config.value(option) == expected
    assert config.origins[name].name == variable


def test_a_key_is_known_with_and_without_its_prefix_and_in_any_case(model_dir: Path) -> None:
    config = given(model_dir, file="option.job_queue_size=7\nTGI_COMPAT=true")
    assert config.server.job_queue_size == 7
    assert config.clients.tgi_compat


def test_two_names_of_one_option_in_one_source_must_agree(model_dir: Path) -> None:
    file = "option.max_rolling_batch_size={}\noption.max_num_seqs=8"
    assert given(model_dir, file=file.format(8)).engine.max_num_seqs == 8
    assert problems(model_dir, file=file.format(9)) == [
        "option.max_rolling_batch_size=9 (serving.properties line 1): contradicts "
        "option.max_num_seqs=8 (serving.properties line 2); give one of them"
    ]


# --- unknown options --------------------------------------------------------------------------------------------------


def test_an_unknown_flag_stops_the_start_and_names_the_nearest(model_dir: Path) -> None:
    assert problems(model_dir, line="--max-num-seq 4") == [
        "--max-num-seq=4 (command line): unknown option; the nearest known one is --max-num-seqs"
    ]


def test_an_unknown_key_stops_the_start_and_names_the_nearest(model_dir: Path) -> None:
    assert problems(model_dir, file="option.tgi_compact=true\njob_que_size=3") == [
        "option.tgi_compact=true (serving.properties line 1): unknown option; the nearest known one is option.tgi_compat",
        "job_que_size=3 (serving.properties line 2): unknown option; the nearest known one is job_queue_size",
    ]


def test_an_unknown_option_variable_stops_the_start_and_names_the_nearest(model_dir: Path) -> None:
    assert problems(model_dir, env={"OPTION_ROLING_BATCH": "vllm"}) == [
        "OPTION_ROLING_BATCH=vllm (environment): unknown option; the nearest known one is OPTION_ROLLING_BATCH"
    ]


def test_an_option_without_a_similar_name_points_to_the_help(model_dir: Path) -> None:
    assert problems(model_dir, file="option.zzzzqqqq=1") == [
        "option.zzzzqqqq=1 (serving.properties line 1): unknown option; `dragoman serve --help-all` lists the known ones"
    ]


class TestOptionsOfAnOperatorsFile:
    def test_are_passed_on_and_noted(self, model_dir: Path) -> None:
        (model_dir / "model.py").write_text("", encoding="utf-8")
        file = "option.voice=deep\noption.task=say\noption.dtype=int4"
        config = given(model_dir, file=file, env={"OPTION_VOICE": "high", "OPTION_PITCH": "2"})
        assert config.own_options == {"task": "say", "voice": "deep", "pitch": "2"}
        assert sum("passed on to model.py" in notice for notice in config.notices) == 3

    def test_may_be_anywhere_if_the_file_is_named(self, model_dir: Path) -> None:
        assert given(model_dir, file="option.voice=deep\noption.entryPoint=own.py").own_options == {"voice": "deep"}

    def test_are_mistakes_without_a_file_that_is_read(self, model_dir: Path) -> None:
        for more in ("option.entryPoint=djl_python.huggingface", ""):
            assert ["option.voice=deep" in one for one in problems(model_dir, file=f"option.voice=deep\n{more}")] == [
                True
            ]
        (model_dir / "model.py").write_text("", encoding="utf-8")
        more = "option.enable_hooks=false"
        assert ["option.voice=deep" in one for one in problems(model_dir, file=f"option.voice=deep\n{more}")] == [True]

    def test_flags_and_keys_of_the_server_still_stop_the_start(self, model_dir: Path) -> None:
        (model_dir / "model.py").write_text("", encoding="utf-8")
        said = problems(model_dir, line="--voice deep", file="option.enable_lora_bias=true\njob_que_size=3")
        assert [one.partition("=")[0] for one in said] == ["--voice", "job_que_size"]

    def test_what_other_servers_know_is_passed_on_but_for_secrets(self, model_dir: Path) -> None:
        (model_dir / "model.py").write_text("", encoding="utf-8")
        config = given(model_dir, file="option.enable_lora_bias=true\noption.n_positions=512\nhf_token=x")
        assert config.own_options == {"enable_lora_bias": "true", "n_positions": "512"}


def test_other_variables_are_ignored(model_dir: Path) -> None:
    config = given(model_dir, env={"PATH": "/bin", "SERVING_SERVICE_HOST": "10.0.0.1", "HOST": "x"})
    assert config.notices == ("SERVING_SERVICE_HOST=10.0.0.1 (environment): not an option of this server, ignored",)


def test_all_problems_are_reported_at_once(model_dir: Path) -> None:
    assert len(problems(model_dir, line="--port x --dtype y", env={"OPTION_A": "1"})) == 3


# --- bad values -------------------------------------------------------------------------------------------------------


@table(
    ("line", "allowed"),
    [
        ("--port=65536", "an integer from 0 to 65535"),
        ("--port=-1", "an integer from 0 to 65535"),
        ("--max-model-len=1.5", "an integer >= 1, or auto, in tokens"),
        ("--kv-cache-gb=nan", "a number > 0, or auto, in GiB"),
        ("--kv-cache-gb=0", "a number > 0, or auto, in GiB"),
        ("--drain-timeout=inf", "a number >= 0, in seconds"),
        ("--tgi-compat=maybe", "true or false"),
        ("--lmi-version=0.30", "one of 0.26, 0.31, 0.32"),
        ("--name=a,a", "names separated by commas, none of them twice"),
        ("--inference-address=0.0.0.0", "http://HOST:PORT"),
        ("--inference-address=https://a:1", "http://HOST:PORT"),
        ("--enable-prefix-caching=prompt", "true or false"),
    ],
)
def test_a_bad_value_names_key_value_source_and_what_is_allowed(line: str, allowed: str, model_dir: Path) -> None:
    assert problems(model_dir, line=line) == [f"{line} (command line): must be {allowed}"]


def test_a_bad_value_in_the_file_names_the_line(model_dir: Path) -> None:
    assert problems(model_dir, file="# ours\noption.chat_format=xml") == [
        "option.chat_format=xml (serving.properties line 2): must be one of auto, lmi, openai"
    ]


def test_a_bad_value_under_another_servers_name_names_its_allowed_values(model_dir: Path) -> None:
    assert problems(model_dir, env={"SAGEMAKER_MAX_PAYLOAD_IN_MB": "6.5"}) == [
        "SAGEMAKER_MAX_PAYLOAD_IN_MB=6.5 (environment): must be an integer >= 1, in MiB"
    ]


def test_an_overridden_bad_value_is_ignored(model_dir: Path) -> None:
    assert given(model_dir, line="--dtype f32", env={"OPTION_DTYPE": "complex64"}).model.dtype == "f32"


@table(
    ("text", "dtype"),
    [("fp32", "f32"), ("float16", "f16"), ("BF16", "bf16"), ("bfloat16", "bf16"), ("int8", "int8"), ("auto", "auto")],
)
def test_the_type_names_of_other_servers_are_understood(text: str, dtype: str, model_dir: Path) -> None:
    assert given(model_dir, env={"OPTION_DTYPE": text}).model.dtype == dtype


@table("flag", ["--kv-cache-gb", "--threads", "--max-model-len", "--predict-timeout"])
def test_auto_means_that_the_server_decides(flag: str, model_dir: Path) -> None:
    option = next(option for option in OPTIONS if option.flag == flag)
    assert given(model_dir, line=f"{flag} auto").value(option) is None


def test_a_properties_file_that_is_not_text_is_one_clear_problem(model_dir: Path) -> None:
    (model_dir / "serving.properties").write_bytes(b"option.dtype=\xff\xfe")
    with pytest.raises(ConfigError, match=r"serving.properties: cannot be read as UTF-8 text"):
        given(model_dir)


# --- options that contradict each other -------------------------------------------------------------------------------


def test_a_batch_size_over_one_implies_dynamic_batching(model_dir: Path) -> None:
    config = given(model_dir, file="batch_size=4")
    assert config.clients.rolling_batch == "disable"
    assert config.origins["rolling_batch"].source.startswith("implied by batch_size=4 (")


def test_a_batch_size_over_one_precedes_rolling_batch_as_in_lmi(model_dir: Path) -> None:
    config = given(model_dir, line="--batch-size 2 --rolling-batch vllm --enable-streaming")
    assert (config.clients.rolling_batch, config.clients.enable_streaming) == ("disable", True)
    assert config.notices == (
        "--rolling-batch=vllm (command line): no effect here; --batch-size=2 (command line) means disable",
    )


def test_a_batch_size_over_one_agrees_with_dynamic_batching(model_dir: Path) -> None:
    assert given(model_dir, line="--batch-size 2 --rolling-batch disable").clients.batch_size == 2


# --- options of other servers -----------------------------------------------------------------------------------------


# What was given, and the beginning of what is said of it.
IDLE = [
    ("--enable-streaming", "--enable-streaming=true (command line): no effect here; requests ask for a stream"),
    ("--tgi-compat --rolling-batch disable", "--tgi-compat=true (command line): no effect here; dynamic batches"),
    ("--tgi-compat --batch-size 2", "--tgi-compat=true (command line): no effect here; dynamic batches"),
    (
        "--num-assistant-tokens 5 --speculation off",
        "--num-assistant-tokens=5 (command line): no effect here; nobody guesses",
    ),
    ("--max-ngram-size 2 --speculation off", "--max-ngram-size=2 (command line): no effect here; nobody guesses"),
    (
        "--max-ngram-size 2 --draft-model d --speculation draft",
        "--max-ngram-size=2 (command line): no effect here; with option.speculation=draft no text",
    ),
    ("--speculative-max-batch 2 --speculation off", "--speculative-max-batch=2 (command line): no effect here; nobody"),
    (
        "--speculation-across-keys --speculation lookup",
        "--speculation-across-keys=true (command line): no effect here; only option.speculation=auto and suffix",
    ),
    ("--handler-threads 2", "--handler-threads=2 (command line): no effect here; no model.py lies beside the model"),
    ("--hook-timeout-s 2", "--hook-timeout-s=2.0 (command line): no effect here; no model.py lies beside the model"),
    (
        "--no-hooks --entry-point own.py",
        "--entry-point=own.py (command line): no effect here; option.enable_hooks=false",
    ),
]


@table(("line", "said"), IDLE)
def test_an_option_without_effect_beside_others_is_noted(line: str, said: str, model_dir: Path) -> None:
    [notice] = given(model_dir, line=line).notices
    assert notice.startswith(said)


@table(
    "line",
    [
        "--enable-streaming --rolling-batch disable",
        "--no-enable-streaming --no-tgi-compat --rolling-batch disable",
        "--tgi-compat --rolling-batch vllm",
        "--num-assistant-tokens 5 --max-ngram-size 2 --speculative-max-batch 3 --speculation-across-keys",
        "--num-assistant-tokens 5 --draft-model d",
        "--handler-threads 2 --hook-timeout-s 2 --entry-point own.py",
    ],
)
def test_an_option_with_effect_is_not_noted(line: str, model_dir: Path) -> None:
    assert given(model_dir, line=line).notices == ()


@table(
    ("name", "profile"),
    [("hf-accelerate", "scheduler"), ("tnx", "auto"), ("lmi_dist", "lmi-dist"), ("tensorrt-llm", "trtllm")],
)
def test_backends_have_other_names(name: str, profile: str, model_dir: Path) -> None:
    assert given(model_dir, file=f"option.rolling_batch={name}").clients.rolling_batch == profile


def test_lmis_streaming_by_hugging_face_is_streaming(model_dir: Path) -> None:
    config = given(model_dir, file="option.rolling_batch=disable\noption.enable_streaming=huggingface")
    assert config.clients.enable_streaming is True


def test_a_foreign_option_is_reported_and_never_stops_the_start(model_dir: Path) -> None:
    config = given(model_dir, file="\n".join(f"{row.key}=unusual" for row in FOREIGN_OPTIONS))
    assert list(config.notices) == [
        f"{row.key}={'(hidden)' if row.is_secret else 'unusual'} ({model_dir}/serving.properties line {line}): "
        f"no effect here; {row.reason}"
        for line, row in enumerate(FOREIGN_OPTIONS, 1)
    ]


def test_a_foreign_value_for_the_present_behaviour_is_not_noted(model_dir: Path) -> None:
    for texts in zip_longest(*(row.harmless for row in FOREIGN_OPTIONS)):
        lines = [f"{row.key}={text}" for row, text in zip(FOREIGN_OPTIONS, texts, strict=True) if text is not None]
        assert given(model_dir, file="\n".join(lines)).notices == ()


@table(("variable", "key"), FOREIGN_VARIABLES.items())
def test_variables_of_other_servers_are_reported(variable: str, key: str, model_dir: Path) -> None:
    row = next(row for row in FOREIGN_OPTIONS if row.key == key)
    [said] = given(model_dir, env={variable: "unusual"}).notices
    shown = "(hidden)" if row.is_secret else "unusual"
    assert said.startswith(f"{variable}={shown} (environment): ")
    assert said.endswith(row.reason)


def test_arguments_of_translators_are_reported(model_dir: Path) -> None:
    [notice] = given(model_dir, env={"ARGS_TOP_K": "5"}).notices
    assert notice.startswith("ARGS_TOP_K=5 (environment): no effect here; ")


@table(
    ("address", "port", "is_told"),
    [
        ("http://127.0.0.1:8080", "8080", False),
        ("http://127.0.0.1:8081", "8081", False),
        ("http://127.0.0.1:8081", "8080", True),
        ("http://0.0.0.0:8080", "8080", True),
        ("unix:/tmp/management.sock", "8080", True),
    ],
)
def test_a_management_address_is_reported_unless_it_is_the_servers_own(
    address: str, port: str, is_told: bool, model_dir: Path
) -> None:
    config = given(model_dir, line=f"--port {port}", env={"SERVING_MANAGEMENT_ADDRESS": address})
    assert [notice.partition("=")[0] for notice in config.notices] == ["SERVING_MANAGEMENT_ADDRESS"] * is_told


# --- the model's directory and name -----------------------------------------------------------------------------------


def test_without_a_directory_the_demo_model_is_served_as_demo(model_dir: Path) -> None:
    config = given(model_dir)
    assert (config.model_dir, config.name) == (model_dir, "demo")


def test_a_model_is_named_after_its_directory(model_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "Other-1B"
    other.mkdir()
    config = given(model_dir, line=f"{other}/")
    assert (config.model_dir, config.directory, config.name) == (other, other, "Other-1B")


def test_further_names_are_aliases(model_dir: Path) -> None:
    assert given(model_dir, file="option.served_model_name=a,b").model.name == ("a", "b")


def test_the_argument_precedes_the_variable(model_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    assert given(model_dir, line=str(other), env={"OPTION_MODEL_ID": str(model_dir)}).model_dir == other
    assert given(model_dir, env={"OPTION_MODEL_ID": str(other)}).model_dir == other


def test_model_id_in_the_file_points_to_the_weights_relative_to_it(model_dir: Path) -> None:
    weights = model_dir / "weights-7b"
    weights.mkdir()
    config = given(model_dir, line=str(model_dir), file="option.model_id=weights-7b\noption.dtype=bf16")
    assert (config.directory, config.model_dir, config.name) == (model_dir, weights, "weights-7b")


@table("text", ["./org/model", "s3://bucket/model", "/nowhere"])
def test_a_model_that_is_not_a_directory_stops_the_start(text: str, model_dir: Path) -> None:
    with pytest.raises(ConfigError, match=r"\(environment\): must be a directory on this machine"):
        given(model_dir, env={"HF_MODEL_ID": text})


def test_a_secret_is_never_shown(model_dir: Path) -> None:
    option = next(option for option in OPTIONS if option.name == "api_key")
    assert option.flag == option.key == ""
    config = given(model_dir, env={"DRAGOMAN_API_KEY": "hush-hush"})
    assert config.server.api_key == "hush-hush"
    assert "hush-hush" not in repr(config.server)


@table("engine", ["vllm", "remote --upstream http://h:1"])
def test_a_queue_timeout_is_refused_for_engines_that_do_not_tell_when_requests_begin(
    model_dir: Path, engine: str
) -> None:
    (problem,) = problems(model_dir, line=f"--queue-timeout 3 --engine {engine}")
    assert problem.startswith("--queue-timeout=3.0 (command line): must not be given together with --engine=")


def test_plain_tokenising_is_refused_for_engines_that_get_texts(model_dir: Path) -> None:
    (problem,) = problems(model_dir, line="--tokenize-content plain --engine remote --upstream http://h:1")
    assert problem.startswith(
        "--tokenize-content=plain (command line): must not be given together with --engine=remote"
    )


class TestAdapters:
    def test_names_and_directories_add_up_and_count_from_the_file_that_has_them(self, model_dir: Path) -> None:
        line = "--lora one=/a --lora two=b"
        assert given(model_dir, line=line).adapters.lora == ("one=/a", "two=b")
        file = given(model_dir, file="option.lora=one=/a,two=b")
        assert file.adapters.lora == ("one=/a", f"two={model_dir / 'b'}")

    def test_the_folder_beside_the_model_is_read_where_adapters_are_on(self, model_dir: Path) -> None:
        (model_dir / "adapters" / "sql").mkdir(parents=True)
        (model_dir / "adapters" / "code").mkdir()
        (model_dir / "adapters" / "llama.gguf").write_bytes(b"")
        (model_dir / "adapters" / "notes.txt").write_bytes(b"")
        assert given(model_dir, line="--lora one=/a").adapters.lora == ("one=/a",)
        found = given(model_dir, line="--enable-lora --lora sql=/a").adapters.lora
        beside = [
            f"{name}={model_dir / 'adapters' / file}" for name, file in (("code", "code"), ("llama", "llama.gguf"))
        ]
        assert found == ("sql=/a", *beside)

    def test_the_folder_beside_a_gguf_file_is_its_models(self, model_dir: Path) -> None:
        (model_dir / "adapters" / "code").mkdir(parents=True)
        (model_dir / "model.gguf").write_bytes(b"")
        found = given(model_dir, line=f"--enable-lora --model-id {model_dir / 'model.gguf'}").adapters.lora
        assert found == (f"code={model_dir / 'adapters' / 'code'}",)

    @table(
        ("line", "said"),
        [
            ("--lora one", "must be NAME=DIR separated by commas, no name twice"),
            ("--lora one=a,one=b", "must be NAME=DIR separated by commas, no name twice"),
            ("--merge-lora", "must be given together with one adapter"),
            (
                "--control-vector a.gguf",
                "unknown option; control vectors are not supported, adapters (LoRA) are: --lora",
            ),
            ("--lora-scaled a.gguf:1", "unknown option; an adapter counts as it was trained"),
            ("--merge-lora --lora one=a,two=b", "must be given together with one adapter"),
            ("--merge-lora --enable-lora --lora one=a", "must not be given together with enable_lora"),
            (
                "--queue-timeout 3 --engine vllm",
                "must not be given together with --engine=vllm (command line); it does not",
            ),
            ("--engine vllm --lora one=a --merge-lora", "vLLM reads the weights by itself"),
            ("--engine remote --upstream http://h:1 --enable-lora", "those that the servers behind it list"),
            ("--engine remote --upstream http://h:1 --lora one=a", "those that the servers behind it list"),
        ],
    )
    def test_what_does_not_go_together_is_refused(self, model_dir: Path, line: str, said: str) -> None:
        assert said in " ".join(problems(model_dir, line=line))
