"""The options of the whole server, rows of the table of options like all others.

Does: declare them. Does not: read anything. Used by `options`, which joins all groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dragoman.config.entries import ModelList
from dragoman.config.kinds import Choice, FilePath, Integer, Number, Some, Switch, Text
from dragoman.config.option import Alias, option


def _mebibytes(text: str) -> str:
    return str(int(text) * 1024 * 1024)


def split_address(text: str) -> tuple[str, str]:
    """Host and port of `http://HOST:PORT`. Raises: ValueError if it has another form."""
    scheme, separator, address = text.rpartition("://")
    host, colon, port = address.rstrip("/").rpartition(":")
    if not colon or not host or (separator and scheme != "http"):
        raise ValueError(text)
    return host, port


def _address_host(text: str) -> str:
    return split_address(text)[0]


def _address_port(text: str) -> str:
    return split_address(text)[1]


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Server"""

    host: str = option(
        "127.0.0.1",
        Text("ADDRESS"),
        "Address to listen on; 0.0.0.0 serves other machines too.",
        key="host",
        keys=(Alias("inference_address", _address_host, "http://HOST:PORT"),),
    )
    port: int = option(
        8080,
        Integer(0, 65535),
        "Port to listen on; 0 takes a free one.",
        key="port",
        keys=(Alias("inference_address", _address_port, "http://HOST:PORT"),),
    )
    api_key: str | None = option(
        None,
        Text("KEY"),
        "Key that clients must send as `Authorization: Bearer KEY`, `api-key: KEY` or `x-api-key: KEY`.",
        unset="no key is asked for",
        env=(Alias("DRAGOMAN_API_KEY"), Alias("API_KEY")),
        is_secret=True,
    )
    api_key_file: Path | None = option(
        None,
        FilePath("FILE"),
        "File with one accepted key per line.",
        unset="no file",
        key="api_key_file",
    )
    max_request_size: int = option(
        67_108_864,
        Integer(1),
        "Largest request body; larger ones are answered 413.",
        unit="bytes",
        key="max_request_size",
        env=(
            Alias("SAGEMAKER_MAX_REQUEST_SIZE"),
            Alias("SAGEMAKER_MAX_PAYLOAD_IN_MB", _mebibytes, "an integer >= 1, in MiB"),
        ),
    )
    job_queue_size: int = option(
        1000,
        Integer(0),
        "Requests that may wait when max_num_seqs are running; more are answered 503 (429 on the TGI routes).",
        unit="requests",
        key="job_queue_size",
        env=(Alias("MAX_CONCURRENT_REQUESTS"),),
    )
    predict_timeout: float | None = option(
        None,
        Number(0, auto=True),
        "Longest time one request may take, waiting included.",
        unit="seconds",
        unset="no limit",
        env=(Alias("SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS"), Alias("PREDICT_TIMEOUT")),
    )
    config_file: Path | None = option(
        None,
        FilePath("FILE"),
        "LMI's config.properties: options for the server and all its models, after all other sources.",
        unset="conf/config.properties or config.properties in MODEL_SERVER_HOME, if that variable is set",
        key="config_file",
        flags=("-f",),
    )
    load_models: tuple[str, ...] = option(
        (),
        ModelList(),
        "Models to serve from one process, each with the options in its own directory; the first is the default one. NONE: "
        "none until one is asked for.",
        unset="the model directory, or all in the model store",
        key="load_models",
        flags=("--models", "-m"),
    )
    model_store: Path | None = option(
        None,
        FilePath("DIRECTORY", "directory"),
        "Directory of models: every directory and archive in it is one; if it holds other files, it is itself the model. "
        "Where it is given, models can also be loaded from it while the server runs.",
        unset="/opt/ml/model where nobody names a model and that exists",
        key="model_store",
        flags=("-s",),
    )
    cors_allowed_origin: str = option(
        "",
        Text("ORIGIN"),
        "Value of the header Access-Control-Allow-Origin.",
        unset="the header is not sent",
        key="cors_allowed_origin",
    )
    cors_allowed_methods: str = option(
        "",
        Text("METHODS"),
        "Value of the header Access-Control-Allow-Methods.",
        unset="the header is not sent",
        key="cors_allowed_methods",
    )
    cors_allowed_headers: str = option(
        "",
        Text("HEADERS"),
        "Value of the header Access-Control-Allow-Headers.",
        unset="the header is not sent",
        key="cors_allowed_headers",
    )
    drain_timeout: float = option(
        30.0,
        Number(0, inclusive=True),
        "How long running requests may finish after SIGTERM or Ctrl-C.",
        unit="seconds",
        key="drain_timeout",
    )
    drain_delay: float = option(
        0.0,
        Number(0, inclusive=True),
        "How long calls are still taken after SIGTERM or Ctrl-C, while health checks already say no, for load balancers.",
        unit="seconds",
        key="drain_delay",
    )
    log_level: str = option(
        "info",
        Choice(("debug", "info", "warning", "error")),
        "Least severe messages to write to the standard error stream.",
        key="log_level",
    )
    log_requests: str = option(
        "text",
        Choice(("off", "text", "json")),
        "A line for each call that generates, when it has ended: what it was, how it ended, tokens and times.",
        key="log_requests",
    )
    log_prompts: bool = option(
        False,
        Switch(),
        "Prompts are part of these lines.",
        key="log_prompts",
    )
    metrics_compat: tuple[str, ...] = option(
        (),
        Some(("vllm", "tgi")),
        "Whose names GET /metrics tells its numbers under as well, for dashboards that know those.",
        unset="nobody's",
        key="metrics_compat",
    )
