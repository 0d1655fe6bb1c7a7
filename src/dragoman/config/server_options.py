"""The options of the whole server, a part of the table in `options`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from dragoman.config.entries import ModelList
from dragoman.config.kinds import (
    Addresses,
    Choice,
    CoreList,
    Duration,
    FilePath,
    Hosts,
    Integer,
    Number,
    Origins,
    PathPrefix,
    Some,
    Switch,
    Text,
)
from dragoman.config.option import Alias, option

_option = partial(option, is_servers=True)


def split_address(text: str) -> tuple[str, str]:
    """Host and port of `http://HOST:PORT`. Raises: ValueError for another form."""
    scheme, separator, address = text.rpartition("://")
    host, colon, port = address.rstrip("/").rpartition(":")
    if not colon or not host or (separator and scheme != "http"):
        raise ValueError(text)
    return host, port


KEY_OPTIONS = ("api_key", "api_key_file", "aws_key_pair", "aws_credentials")
"""The sources of callers' keys; if none is set, callers need no key."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Server"""

    host: str = _option(
        "127.0.0.1",
        Addresses(),
        "Address to listen on, or several separated by commas; 0.0.0.0 also serves other machines.",
        keys=(Alias("inference_address", lambda text: split_address(text)[0], "http://HOST:PORT"),),
    )
    port: int = _option(
        8080,
        Integer(0, 65535),
        "Port to listen on; 0 picks a free one.",
        env=(Alias("SAGEMAKER_BIND_TO_PORT"),),
        keys=(Alias("inference_address", lambda text: split_address(text)[1], "http://HOST:PORT"),),
    )
    unix_socket: Path | None = _option(
        None,
        FilePath("FILE"),
        "Unix socket to listen on instead of host and port. The directory's permissions and the umask decide who may "
        "connect. The server creates it at the start and removes it at the end.",
        unset="host and port",
        flags=("--uds",),
    )
    path_prefix: str | None = _option(
        None,
        PathPrefix(),
        "Prefix of all paths, for a proxy that forwards paths unchanged: with /llm, clients call /llm/v1/models.",
        unset="none",
        flags=("--api-prefix",),
    )
    api_key: str | None = _option(
        None,
        Text("KEY"),
        "Key that clients must send as `Authorization: Bearer KEY`, `api-key: KEY` or `x-api-key: KEY`.",
        unset="no key is required",
        env=(Alias("DRAGOMAN_API_KEY"), Alias("API_KEY"), Alias("VLLM_API_KEY")),
        is_secret=True,
    )
    api_key_file: Path | None = _option(
        None,
        FilePath("FILE"),
        "File with one accepted key per line: `KEY`, or `NAME: KEY` and its scopes (see security.md). Reloaded when "
        "it changes.",
        unset="no file",
    )
    store_dir: Path | None = _option(
        None,
        FilePath("DIR"),
        "Directory for files and batches that clients upload (`/v1/files`, `/v1/batches`, `/v1/messages/batches`). "
        "Only one server may use it at a time.",
        unset="uploads are refused",
    )
    store_gb: float = _option(10.0, Number(), "Disk space for all files and batches.", unit="GiB")
    store_gb_per_key: float | None = _option(
        None,
        Number(auto=True),
        "Disk space for the files and batches of one API key.",
        unit="GiB",
        unset="store_gb",
    )
    store_max_age_days: float = _option(30.0, Number(), "How long files and finished batches are kept.", unit="days")
    aws_key_pair: str | None = _option(
        None,
        Text("ID:SECRET"),
        "Key pair that AWS clients sign requests with, `ID:SECRET` or `ID:SECRET:SESSION_TOKEN`.",
        unset="signatures are not accepted",
        env=(Alias("DRAGOMAN_AWS_KEY_PAIR"),),
        is_secret=True,
    )
    aws_credentials: Path | None = _option(
        None,
        FilePath("FILE"),
        "File with the key pairs of AWS clients, in the format of AWS's credentials file. Reloaded when it changes.",
        unset="no file",
    )
    open_scopes: tuple[str, ...] = _option(
        (),
        Some(("inference", "metrics", "management", "debug")),
        "Scopes that need no key even if keys are set.",
        unset="health checks and the API description only",
    )
    rate_limit_requests: int | None = _option(
        None,
        Integer(1, 999_999_999, auto=True),
        "Requests per minute and key, unless the key file says otherwise; further ones are answered 429.",
        unset="no limit",
    )
    rate_limit_tokens: int | None = _option(
        None,
        Integer(1, 999_999_999, auto=True),
        "Prompt and completion tokens per minute and key, unless the key file says otherwise.",
        unset="no limit",
    )
    tls_cert: Path | None = _option(
        None,
        FilePath("FILE"),
        "Certificate chain in PEM; the server then speaks HTTPS only. Reloaded when it changes.",
        unset="plain HTTP",
        keys=(Alias("certificate_file"),),
        flags=("--ssl-certfile",),
    )
    tls_key: Path | None = _option(
        None,
        FilePath("FILE"),
        "Private key of the certificate, in PEM, without a password.",
        unset="read from the certificate's file",
        keys=(Alias("private_key_file"),),
        flags=("--ssl-keyfile",),
    )
    tls_client_ca: Path | None = _option(
        None,
        FilePath("FILE"),
        "CA certificates in PEM; every client must present a certificate signed by one of them.",
        unset="clients need no certificate",
        flags=("--ssl-ca-certs",),
    )
    max_request_size: int = _option(
        67_108_864,
        Integer(1),
        "Largest request body; larger ones are answered 413.",
        unit="bytes",
        env=(
            Alias("SAGEMAKER_MAX_REQUEST_SIZE"),
            Alias("SAGEMAKER_MAX_PAYLOAD_IN_MB", lambda text: str(int(text) << 20), "an integer >= 1, in MiB"),
        ),
    )
    max_body_memory: int = _option(
        268_435_456,
        Integer(1),
        "Memory for the bodies of all requests, from their first byte until they are answered. Requests beyond it are "
        "answered 503, or 429 in APIs that define it.",
        unit="bytes",
    )
    max_image_memory: int = _option(
        2_147_483_648,
        Integer(1),
        "Memory for the images of all requests, from decoding until their requests end. Requests beyond it wait a few "
        "seconds, then are answered 503, or 429 in APIs that define it.",
        unit="bytes",
    )
    job_queue_size: int = _option(
        1000,
        Integer(0),
        "Most requests that may wait while max_num_seqs are running. Further ones are answered 503, or 429 in APIs "
        "that define it.",
        unit="requests",
        env=(Alias("MAX_CONCURRENT_REQUESTS"),),
        open_to="load",
    )
    predict_timeout: float | None = _option(
        None,
        Number(0, auto=True),
        "Time limit of one request, including its wait.",
        key="option.predict_timeout",
        unit="seconds",
        unset="no limit",
        env=(Alias("SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS"), Alias("PREDICT_TIMEOUT")),
        open_to="load",
    )
    max_queued_tokens: int | None = _option(
        None,
        Integer(1),
        "Most prompt tokens that may wait to be computed, over all requests. Requests beyond it are answered as if "
        "the queue were full.",
        unit="tokens",
        unset="no limit",
        open_to="load",
    )
    max_prompt_tokens: int | None = _option(
        None,
        Integer(1),
        "Longest prompt of a request.",
        unit="tokens",
        unset="max_model_len",
        env=(Alias("MAX_INPUT_TOKENS"), Alias("MAX_INPUT_LENGTH")),
        open_to="load",
    )
    max_completion_tokens: int | None = _option(
        None,
        Integer(1),
        "Longest answer that a request may ask for, and the limit of requests that give none.",
        unit="tokens",
        unset="max_model_len",
        open_to="load",
    )
    max_requests_per_key: int | None = _option(
        None,
        Integer(1),
        "Most requests in flight per API key; further ones are answered as if the queue were full. Requests without a "
        "key share one limit.",
        unit="requests",
        unset="no limit",
        open_to="load",
    )
    queue_timeout: float | None = _option(
        None,
        Number(0),
        "Longest wait of a request before its first step; it is then answered as if the queue were full.",
        unit="seconds",
        unset="no limit",
        open_to="load",
    )
    config_file: Path | None = _option(
        None,
        FilePath("FILE"),
        "LMI's config.properties: options for the server and all its models, with the lowest precedence.",
        unset="config.properties or conf/config.properties in MODEL_SERVER_HOME, if that variable is set",
        flags=("-f",),
    )
    load_models: tuple[str, ...] = _option(
        (),
        ModelList(),
        "Models to serve from one process, each with the options in its own directory; the first is the default. NONE "
        "loads none until a call asks for one.",
        unset="the model directory, or everything in the model store",
        flags=("--models", "-m"),
    )
    model_store: Path | None = _option(
        None,
        FilePath("DIRECTORY", "directory"),
        "Directory of models: each directory and archive in it is a model; if it holds other files, it is a model "
        "itself. If set, clients can also load models from it while the server runs.",
        unset="/opt/ml/model, if it exists and no model is named",
        flags=("-s",),
    )
    models_dir: Path | None = _option(
        None,
        FilePath("DIRECTORY", "directory"),
        "Directory of models that any call may name, as NAME or ORG/NAME: model directories, GGUF files, OpenVINO "
        "exports, or a hub cache. The first call loads the model; idle models are unloaded to make room, least "
        "recently used first.",
        unset="calls may only name the served models",
    )
    memory_gb: float | None = _option(
        None,
        Number(0.0),
        "Most memory that all models may take together.",
        unit="GiB",
        unset="the memory that is free at the start",
    )
    idle_unload: float = _option(
        0.0,
        Duration(),
        "Time without a call after which a model is unloaded; the next call that names it loads it again. 0 = never. "
        "Ollama's keep_alive and LM Studio's ttl take precedence.",
    )
    cors_allowed_origin: str = _option(
        "",
        Origins(),
        "Origins whose pages may read answers in browsers (CORS).",
        unset="none",
    )
    cors_allowed_methods: str = _option(
        "",
        Text("METHODS"),
        "Methods that such pages may use, separated by commas.",
        unset="the methods of the route",
    )
    cors_allowed_headers: str = _option(
        "",
        Text("HEADERS"),
        "Headers that such pages may send, separated by commas.",
        unset="the headers the page asks for",
    )
    cors_allow_credentials: bool = _option(
        False,
        Switch(),
        "Let browsers send cookies and certificates with the calls of such pages.",
    )
    allowed_hosts: tuple[str, ...] = _option(
        (),
        Hosts(),
        "Host names that requests may use (the Host header), besides localhost and the server's own addresses; others "
        "are answered 403. Pages from these hosts count as same-origin.",
        unset="any; only those if the server listens on this machine alone, without keys",
    )
    drain_timeout: float = _option(
        30.0,
        Number(0, inclusive=True),
        "How long running requests may take to finish after SIGTERM or Ctrl-C.",
        unit="seconds",
    )
    drain_delay: float = _option(
        0.0,
        Number(0, inclusive=True),
        "How long calls are still accepted after SIGTERM or Ctrl-C while health checks already fail, for load "
        "balancers.",
        unit="seconds",
    )
    cores: str = _option(
        "auto",
        CoreList(("auto",)),
        "Cores for the model's kernels, as a Linux core list (see many_cores.md). auto: one thread on each physical "
        "core that the process may use, except the cores for HTTP.",
    )
    http_cores: str = _option(
        "auto",
        CoreList(("auto", "shared")),
        "Cores for HTTP, tokenizing and grammars. auto: those not in --cores; if --cores is not set, one of 8 to 31 "
        "physical cores, or a sixteenth of more. shared: the kernels' cores, which is also what auto means with 7 or "
        "fewer.",
    )
    numa: str = _option(
        "off",
        CoreList(("off", "auto"), has_nodes=True),
        "Run one engine per NUMA node (auto) or per listed set of cores, all behind this port. Each is a process with "
        "its own copy of the weights. off: one engine, which uses one socket.",
    )
    on_engine_failure: str = _option(
        "restart",
        Choice(("restart", "restart-then-exit", "exit")),
        "What to do after an engine dies and its requests are answered. restart: start a new one, up to "
        "--max-engine-restarts times, then leave the model dead. restart-then-exit: then exit with code 70. exit: "
        "exit at once.",
    )
    max_engine_restarts: int = _option(
        3,
        Integer(0),
        "Most restarts of a model's engine within --engine-restart-window.",
    )
    engine_restart_window: float = _option(
        600.0,
        Number(0),
        "Time window in which restarts of an engine are counted.",
        unit="seconds",
    )
    log_level: str = _option(
        "info",
        Choice(("debug", "info", "warning", "error")),
        "Least severe messages to write to standard error.",
    )
    log_requests: str = _option(
        "text",
        Choice(("off", "text", "json")),
        "Log one line per finished call that generates: model, outcome, tokens and times. On a terminal the lines are "
        "short.",
    )
    log_prompts: bool = _option(
        False,
        Switch(),
        "Include prompts and error messages in these lines, and full exception texts in the log.",
    )
    otlp_traces_endpoint: str | None = _option(
        None,
        Text("URL"),
        "URL that receives OpenTelemetry spans of calls, such as http://localhost:4318/v1/traces. Needs the extra "
        "dragoman[otel]; the SDK's other variables (OTEL_*) apply.",
        unset="no spans are sent",
        keys=(Alias("option.otlp_traces_endpoint"),),
        env=(
            Alias("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
            Alias("OTEL_EXPORTER_OTLP_ENDPOINT", lambda text: text.rstrip("/") + "/v1/traces"),
        ),
    )
    otlp_traces_protocol: str = _option(
        "http/protobuf",
        Choice(("http/protobuf", "grpc")),
        "Protocol for the spans. grpc also needs the package opentelemetry-exporter-otlp-proto-grpc.",
        env=(Alias("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), Alias("OTEL_EXPORTER_OTLP_PROTOCOL")),
    )
    strict: bool = _option(
        False,
        Switch(),
        "Refuse parameters that have no effect. Otherwise they are named in the header x-dragoman-ignored. A call "
        "overrides this with the header x-dragoman-strict: 1 or 0.",
    )
    timings: bool = _option(
        False,
        Switch(),
        "Add a timings block, in llama.cpp's format, to answers. A call overrides this with the header "
        "x-dragoman-timings: 1 or 0.",
    )
    keep_alive_seconds: float = _option(
        0.0,
        Number(0.0, inclusive=True),
        "Seconds of silence after which an event stream sends something that clients ignore: a comment, or a ping in "
        "Anthropic's API. Streams of JSON lines get none. 0 = never.",
    )
    playground: bool = _option(
        True,
        Switch(),
        "Serve the page /playground, for trying the models in a browser. If off, browsers that ask for / get /docs.",
        flags=("--ui", "--webui"),
    )
    allow_pull: bool = _option(
        False,
        Switch(),
        "Let clients download models from the hub to this machine, as Ollama's do with POST /api/pull.",
    )
    metrics_compat: tuple[str, ...] = _option(
        (),
        Some(("vllm", "tgi")),
        "Other servers' metric names that GET /metrics reports as well, for existing dashboards.",
        unset="none",
    )

    @property
    def is_local(self) -> bool:
        """True if only this machine can reach the socket, or every address or name of `host`."""
        return self.unix_socket is not None or all(map(_is_loopback, self.hosts))

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(self.host.split(","))

    @property
    def has_keys(self) -> bool:
        return any(getattr(self, name) for name in KEY_OPTIONS)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


PER_MODEL = frozenset(field.name for field in fields(ServerSettings) if field.metadata["row"].open_to == "load")
