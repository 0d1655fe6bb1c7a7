"""The options of the whole server, rows of the table of options like all others.

Does: declare them. Does not: read anything. Used by `options`, which joins all groups.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
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


def _mebibytes(text: str) -> str:
    return str(int(text) * 1024 * 1024)


def _traces_url(text: str) -> str:
    return text.rstrip("/") + "/v1/traces"


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


KEY_OPTIONS = ("api_key", "api_key_file", "aws_key_pair", "aws_credentials")
"""Where callers' keys come from; while none of them is set, nobody is asked for one."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Server"""

    host: str = option(
        "127.0.0.1",
        Addresses(),
        "Address to listen on, or several, separated by commas; 0.0.0.0 serves other machines too.",
        key="host",
        keys=(Alias("inference_address", _address_host, "http://HOST:PORT"),),
    )
    port: int = option(
        8080,
        Integer(0, 65535),
        "Port to listen on; 0 takes a free one.",
        key="port",
        env=(Alias("SAGEMAKER_BIND_TO_PORT"),),
        keys=(Alias("inference_address", _address_port, "http://HOST:PORT"),),
    )
    unix_socket: Path | None = option(
        None,
        FilePath("FILE"),
        "Socket to listen on in the place of host and port, for proxies and programs of this machine. Who may connect, the "
        "directory's rights and the umask say. It is made at the start and removed at the end.",
        unset="host and port",
        key="unix_socket",
        flags=("--uds",),
    )
    path_prefix: str | None = option(
        None,
        PathPrefix(),
        "What all paths begin with, where a proxy in front passes them on as they are: with /llm, /llm/v1/models.",
        unset="none",
        key="path_prefix",
        flags=("--api-prefix",),
    )
    api_key: str | None = option(
        None,
        Text("KEY"),
        "Key that clients must send as `Authorization: Bearer KEY`, `api-key: KEY` or `x-api-key: KEY`.",
        unset="no key is asked for",
        env=(Alias("DRAGOMAN_API_KEY"), Alias("API_KEY"), Alias("VLLM_API_KEY")),
        is_secret=True,
    )
    api_key_file: Path | None = option(
        None,
        FilePath("FILE"),
        "File with one accepted key per line: `KEY`, or `NAME: KEY` and what it opens (see security.md). Read anew when it "
        "changes.",
        unset="no file",
        key="api_key_file",
    )
    store_dir: Path | None = option(
        None,
        FilePath("DIR"),
        "Directory for files and batches that clients send (`/v1/files`, `/v1/batches`, `/v1/messages/batches`); one server "
        "uses it at a time.",
        unset="no files and batches are taken",
        key="store_dir",
    )
    store_gb: float = option(
        10.0,
        Number(),
        "What files and batches may take on the disk together.",
        unit="GiB",
        key="store_gb",
    )
    store_gb_per_key: float | None = option(
        None,
        Number(auto=True),
        "What those of one API key may take.",
        unit="GiB",
        unset="all of store_gb",
        key="store_gb_per_key",
    )
    store_max_age_days: float = option(
        30.0,
        Number(),
        "How long files, and batches that have ended, are kept.",
        unit="days",
        key="store_max_age_days",
    )
    aws_key_pair: str | None = option(
        None,
        Text("ID:SECRET"),
        "Key pair that AWS clients sign requests with, `ID:SECRET` or `ID:SECRET:SESSION_TOKEN`.",
        unset="no signatures are taken",
        env=(Alias("DRAGOMAN_AWS_KEY_PAIR"),),
        is_secret=True,
    )
    aws_credentials: Path | None = option(
        None,
        FilePath("FILE"),
        "File with the key pairs of AWS clients, in the form of AWS's own credentials file. Read anew when it changes.",
        unset="no file",
        key="aws_credentials",
    )
    open_scopes: tuple[str, ...] = option(
        (),
        Some(("inference", "metrics", "management", "debug")),
        "What needs no key even where keys are set.",
        unset="health checks and the description only",
        key="open_scopes",
    )
    rate_limit_requests: int | None = option(
        None,
        Integer(1, 999_999_999, auto=True),
        "Requests that each key may make per minute, unless the file of keys says otherwise; more are answered 429.",
        unset="no limit",
        key="rate_limit_requests",
    )
    rate_limit_tokens: int | None = option(
        None,
        Integer(1, 999_999_999, auto=True),
        "Prompt and completion tokens that each key may have per minute, likewise.",
        unset="no limit",
        key="rate_limit_tokens",
    )
    tls_cert: Path | None = option(
        None,
        FilePath("FILE"),
        "Certificate chain in PEM; HTTPS is spoken then, and nothing else. Read anew when it changes.",
        unset="plain HTTP is spoken",
        key="tls_cert",
        keys=(Alias("certificate_file"),),
        flags=("--ssl-certfile",),
    )
    tls_key: Path | None = option(
        None,
        FilePath("FILE"),
        "Private key of the certificate, in PEM, without a password.",
        unset="in the file of the certificate",
        key="tls_key",
        keys=(Alias("private_key_file"),),
        flags=("--ssl-keyfile",),
    )
    tls_client_ca: Path | None = option(
        None,
        FilePath("FILE"),
        "Certificates in PEM, one of which has to have signed that of every client.",
        unset="clients need no certificate",
        key="tls_client_ca",
        flags=("--ssl-ca-certs",),
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
    max_body_memory: int = option(
        268_435_456,
        Integer(1),
        "Most that the bodies of all requests take together, from their first bytes until they are answered; more get "
        "503, or 429 by APIs that have it.",
        unit="bytes",
        key="max_body_memory",
    )
    max_image_memory: int = option(
        2_147_483_648,
        Integer(1),
        "Most that the images of all requests take together, from reading them until their requests end; more wait for some "
        "seconds and get 503, or 429 by APIs that have it.",
        unit="bytes",
        key="max_image_memory",
    )
    job_queue_size: int = option(
        1000,
        Integer(0),
        "Requests that may wait when max_num_seqs are running; more are answered 503, or 429 by APIs that have it.",
        unit="requests",
        key="job_queue_size",
        env=(Alias("MAX_CONCURRENT_REQUESTS"),),
        open_to="load",
    )
    predict_timeout: float | None = option(
        None,
        Number(0, auto=True),
        "Longest time one request may take, waiting included.",
        unit="seconds",
        unset="no limit",
        env=(Alias("SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS"), Alias("PREDICT_TIMEOUT")),
        open_to="load",
    )
    max_queued_tokens: int | None = option(
        None,
        Integer(1),
        "Prompt tokens that may wait to be computed, those of all requests together; more are answered as a full queue is.",
        unit="tokens",
        unset="no limit",
        key="max_queued_tokens",
        open_to="load",
    )
    max_prompt_tokens: int | None = option(
        None,
        Integer(1),
        "Longest prompt of a request.",
        unit="tokens",
        unset="what fits into max_model_len",
        key="max_prompt_tokens",
        env=(Alias("MAX_INPUT_TOKENS"), Alias("MAX_INPUT_LENGTH")),
        open_to="load",
    )
    max_completion_tokens: int | None = option(
        None,
        Integer(1),
        "Longest answer a client may ask for; requests that do not say how long get no longer ones.",
        unit="tokens",
        unset="what fits into max_model_len",
        key="max_completion_tokens",
        open_to="load",
    )
    max_requests_per_key: int | None = option(
        None,
        Integer(1),
        "Requests of one API key that may be in flight; more are answered as a full queue is. All without a key are one.",
        unit="requests",
        unset="no limit",
        key="max_requests_per_key",
        open_to="load",
    )
    queue_timeout: float | None = option(
        None,
        Number(0),
        "Longest time one request may wait before its first step; it is then answered as if the queue was full.",
        unit="seconds",
        unset="no limit",
        key="queue_timeout",
        open_to="load",
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
    models_dir: Path | None = option(
        None,
        FilePath("DIRECTORY", "directory"),
        "Directory of models that any call may name, as NAME or ORG/NAME: model directories, GGUF files, OpenVINO exports, "
        "or a cache of the hub. The first call loads the model; the least recently used idle ones make room.",
        unset="calls name the models that are served",
        key="models_dir",
    )
    memory_gb: float | None = option(
        None,
        Number(0.0),
        "The most memory that all models may take together.",
        unit="GiB",
        unset="what is free at the start",
        key="memory_gb",
    )
    idle_unload: float = option(
        0.0,
        Duration(),
        "Time without a call after which a model gives its memory back; the next call that names it loads it again. "
        "0 = never. Ollama's keep_alive and LM Studio's ttl go before it.",
        key="idle_unload",
    )
    cors_allowed_origin: str = option(
        "",
        Origins(),
        "Origins whose pages may read answers in browsers (CORS).",
        unset="none",
        key="cors_allowed_origin",
    )
    cors_allowed_methods: str = option(
        "",
        Text("METHODS"),
        "Methods that such pages may use, separated by commas.",
        unset="those of the route",
        key="cors_allowed_methods",
    )
    cors_allowed_headers: str = option(
        "",
        Text("HEADERS"),
        "Header fields that such pages may send, separated by commas.",
        unset="those that a page asks for",
        key="cors_allowed_headers",
    )
    cors_allow_credentials: bool = option(
        False,
        Switch(),
        "Browsers may send cookies and certificates with the calls of such pages.",
        key="cors_allow_credentials",
    )
    allowed_hosts: tuple[str, ...] = option(
        (),
        Hosts(),
        "Names by which this server may be asked (the field Host), beside localhost and its own addresses; others get 403. "
        "Pages from there are its own.",
        unset="any; but none more where the server listens on this machine only, without keys",
        key="allowed_hosts",
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
    cores: str = option(
        "auto",
        CoreList(("auto",)),
        "Cores that the model's kernels run on, as Linux lists them (see many_cores.md). auto: one thread of each physical "
        "core that the process may use, but for those of HTTP.",
        key="cores",
    )
    http_cores: str = option(
        "auto",
        CoreList(("auto", "shared")),
        "Cores for HTTP, tokenising and grammars. auto: those that --cores leaves; where nobody says that, one of 8 to 31 "
        "physical cores, of more a sixteenth. shared: those of the kernels, and of 7 or fewer auto means that too.",
        key="http_cores",
    )
    numa: str = option(
        "off",
        CoreList(("off", "auto"), has_nodes=True),
        "One engine for each memory node (auto), or for each of these lists of cores, behind this one port; each is a "
        "process with a copy of the weights. An engine by itself uses one socket.",
        key="numa",
    )
    on_engine_failure: str = option(
        "restart",
        Choice(("restart", "restart-then-exit", "exit")),
        "What follows when an engine dies, its requests answered: another one takes its place, up to --max-engine-restarts "
        "times, then the model stays dead or the process exits with code 70; or it exits at once.",
        key="on_engine_failure",
    )
    max_engine_restarts: int = option(
        3,
        Integer(0),
        "How often a model's engine is restarted within --engine-restart-window.",
        key="max_engine_restarts",
    )
    engine_restart_window: float = option(
        600.0,
        Number(0),
        "The time in which restarts of an engine are counted.",
        unit="seconds",
        key="engine_restart_window",
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
        "A line for each call that generates, when it has ended: what it was, how it ended, tokens and times; short where "
        "a terminal shows it.",
        key="log_requests",
    )
    log_prompts: bool = option(
        False,
        Switch(),
        "Prompts are part of these lines, and what errors say; the log cites exceptions whole.",
        key="log_prompts",
    )
    otlp_traces_endpoint: str | None = option(
        None,
        Text("URL"),
        "Where spans of calls are sent for OpenTelemetry, as in http://localhost:4318/v1/traces. Needs the extra "
        "dragoman[otel]; what else the SDK reads of the environment (OTEL_*) counts.",
        unset="no spans are made",
        key="otlp_traces_endpoint",
        keys=(Alias("option.otlp_traces_endpoint"),),
        env=(Alias("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), Alias("OTEL_EXPORTER_OTLP_ENDPOINT", _traces_url)),
    )
    otlp_traces_protocol: str = option(
        "http/protobuf",
        Choice(("http/protobuf", "grpc")),
        "How they are sent. grpc needs the package opentelemetry-exporter-otlp-proto-grpc as well.",
        key="otlp_traces_protocol",
        env=(Alias("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), Alias("OTEL_EXPORTER_OTLP_PROTOCOL")),
    )
    strict: bool = option(
        False,
        Switch(),
        "Parameters without effect are errors; otherwise they are named in x-dragoman-ignored. A call chooses for itself "
        "with the header x-dragoman-strict: 1 or 0.",
        key="strict",
    )
    timings: bool = option(
        False,
        Switch(),
        "Answers tell how long they took, in a block timings as llama.cpp's server has it. A call chooses for itself with "
        "the header x-dragoman-timings: 1 or 0.",
        key="timings",
    )
    keep_alive_seconds: float = option(
        10.0,
        Number(0.0, inclusive=True),
        "Seconds of silence after which a stream of events gets something that clients drop: a comment, from Anthropic's "
        "API a ping. Streams of lines get nothing; 0 = no stream does.",
        key="keep_alive_seconds",
    )
    playground: bool = option(
        True,
        Switch(),
        "The page at /playground, to try the models in a browser; without it, browsers that ask for / get /docs.",
        key="playground",
    )
    allow_pull: bool = option(
        False,
        Switch(),
        "Clients may have models of the hub downloaded to this machine, as Ollama's do with POST /api/pull.",
        key="allow_pull",
    )
    metrics_compat: tuple[str, ...] = option(
        (),
        Some(("vllm", "tgi")),
        "Whose names GET /metrics tells its numbers under as well, for dashboards that know those.",
        unset="nobody's",
        key="metrics_compat",
    )

    @property
    def is_local(self) -> bool:
        """True if only this machine reaches what listens on the socket, or on each address or name of `host`."""
        return self.unix_socket is not None or all(map(_is_loopback, self.hosts))

    @property
    def hosts(self) -> tuple[str, ...]:
        """The addresses and names of `host`."""
        return tuple(self.host.split(","))

    @property
    def has_keys(self) -> bool:
        """True if callers need a key."""
        return any(getattr(self, name) for name in KEY_OPTIONS)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


PER_MODEL = frozenset(one.name for one in fields(ServerSettings) if one.metadata["row"].open_to == "load")
"""Of the server's settings those that each model has."""
