"""Options reach the part they are about: each client option changes what the dialects do, without any model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.arguments import read_arguments
from dragoman.compose import model_profile
from dragoman.config.engine_options import OPTIONS, ClientSettings
from dragoman.config.option import Option
from dragoman.config.request_options import SamplingSettings
from dragoman.config.resolve import demo_model_dir, resolve
from dragoman.errors import InvalidRequest
from dragoman.host.templates import find_chat_template
from dragoman.server.api import Call, Dialect, Dialects, HttpCall
from dragoman.server.apis import set_up_all
from dragoman.server.apis.lmi.dialects import options_of
from dragoman.server.apis.lmi_wire.parameters import LmiOptions
from dragoman.tokenizer.hf_tokenizer import load_tokenizer
from dragoman.types import ChatPrompt, Limits
from tests.support.console_blocks import without_varying_parts
from tests.support.scripted import scripted_result

LMI = "/invocations"
CHAT = "/v1/chat/completions"
THINKING = '{"enable_thinking": true}'
MESSAGES = [{"role": "user", "content": "a"}]


def dialects(tmp_path: Path, line: str) -> Dialects:
    return set_up_all(model_profile(resolve(read_arguments(line.split()).givens, {}, tmp_path)))


def parse(dialect: Dialect, path: str, **body: object) -> Call:
    headers = {"content-type": "application/json"}
    return dialect.open(HttpCall("POST", path, json.dumps(body).encode(), headers, request_id="r")).parse()


def answer(dialect: Dialect, path: str, **body: object) -> str:
    call = parse(dialect, path, **body)
    reply = call.encoder.full([scripted_result(request) for request in call.requests])
    return without_varying_parts(reply.body.decode())


def is_refused(dialect: Dialect, path: str, **body: object) -> bool:
    try:
        parse(dialect, path, **body)
    except InvalidRequest:
        return True
    return False


def lmi(found: Dialects, **parameters: object) -> str:
    return answer(found["lmi"], LMI, inputs="a b", parameters=parameters)


def chat(found: Dialects, **body: object) -> str:
    return answer(found["lmi.v1_chat"], CHAT, messages=MESSAGES, **body)


def text(found: Dialects) -> Call:
    return parse(found["text"], "/api/generate-one", id=1, prompt="a", maxLength=3)


def observed(name: str, found: Dialects) -> object:
    """Something that the option `name` must change."""
    completions = found["openai.completions"]
    seen: dict[str, Callable[[], object]] = {
        "rolling_batch": lambda: lmi(found),
        "lmi_version": lambda: lmi(found, details=True),
        "batch_size": lambda: lmi(found),
        "output_formatter": lambda: parse(found["lmi"], LMI, inputs="a").stream,
        "enable_streaming": lambda: parse(found["lmi"], LMI, inputs="a").stream,
        "tgi_compat": lambda: lmi(found),
        "lmi_strict": lambda: parse(found["lmi.v1_chat"], CHAT, messages=MESSAGES).requests[0].max_tokens,
        "generation_config": lambda: parse(found["lmi.v1_chat"], CHAT, messages=MESSAGES).requests[0].sampling,
        "chat_format": lambda: chat(found),
        "text_status_hold_ms": lambda: text(found).hold_s,
        "text_chat_template": lambda: isinstance(text(found).requests[0].prompt, ChatPrompt),
        "max_best_of": lambda: is_refused(completions, "/v1/completions", prompt="a", n=3),
        "max_stop_strings": lambda: is_refused(completions, "/v1/completions", prompt="a", stop=["x", "y", "z"]),
        "max_logprobs": lambda: is_refused(completions, "/v1/completions", prompt="a", logprobs=3),
        "max_prompts": lambda: is_refused(completions, "/v1/completions", prompt=["a", "b", "c"]),
        "min_priority": lambda: is_refused(completions, "/v1/completions", prompt="a", priority=-3),
    }
    return seen[name]()


LINES = {
    "rolling_batch": "--rolling-batch disable",
    "lmi_version": "--lmi-version 0.26",
    "batch_size": "--batch-size 2",
    "output_formatter": "--output-formatter sse",
    "enable_streaming": "--rolling-batch disable --enable-streaming",
    "tgi_compat": "--tgi-compat",
    "lmi_strict": "--lmi-strict",
    "generation_config": "--generation-config all",
    "chat_format": "--chat-format openai",
    "text_status_hold_ms": "--text-status-hold-ms 7",
    "text_chat_template": "--text-chat-template",
    "max_best_of": "--max-best-of 2",
    "max_stop_strings": "--max-stop-strings 2",
    "max_logprobs": "--max-logprobs 2",
    "max_prompts": "--max-prompts 2",
    "min_priority": "--min-priority -3",
}
# these act on a model.py, not on dialects: see tests/hooks
HOOK_OPTIONS = ("entry_point", "hooks", "hook_timeout_s", "handler", "handler_threads")
# these on what is kept between calls: see tests/server/test_responses_store.py and test_responses_routes.py
STORE_OPTIONS = ("max_stored_responses", "max_stored_responses_mb", "stored_responses_max_age_s")
# this on the answer of a request whose grammar is slow: see tests/grammar; that on models that embed: see tests/dialects
ELSEWHERE = (*HOOK_OPTIONS, *STORE_OPTIONS, "max_grammar_s", "allow_token_ids")
CLIENT_OPTIONS = [option for option in OPTIONS if option.group is ClientSettings and option.name not in ELSEWHERE]


@pytest.mark.parametrize("option", CLIENT_OPTIONS, ids=lambda option: option.name)
def test_every_client_option_changes_what_clients_see(option: Option, tmp_path: Path) -> None:
    line = LINES[option.name]
    (tmp_path / "generation_config.json").write_text('{"do_sample": true, "top_p": 0.5}')
    assert observed(option.name, dialects(tmp_path, line)) != observed(option.name, dialects(tmp_path, ""))


@pytest.mark.parametrize(
    ("line", "environ"),
    [
        (["--default-chat-template-kwargs", THINKING], {}),
        (["--chat-template-kwargs", THINKING], {}),
        ([], {"OPTION_DEFAULT_CHAT_TEMPLATE_KWARGS": THINKING}),
    ],
)
def test_every_conversation_tells_the_template_what_the_operator_says(
    line: list[str], environ: dict[str, str], tmp_path: Path
) -> None:
    config = resolve(read_arguments([str(demo_model_dir()), *line]).givens, environ, tmp_path)
    template = find_chat_template(config, load_tokenizer(config.model_dir))
    assert template is not None
    asked = (
        ChatPrompt(({"role": "user", "content": "a"},), template_kwargs=kwargs)
        for kwargs in ({}, {"enable_thinking": False})
    )
    assert [template.render(prompt).endswith("<think>\n") for prompt in asked] == [True, False]


@pytest.mark.parametrize("option", ["max_best_of", "max_stop_strings", "max_logprobs"])
@pytest.mark.parametrize("dialect", ["lmi", "tgi", "ovms.completions"])
def test_limits_hold_in_every_dialect(dialect: str, option: str, tmp_path: Path) -> None:
    found = dialects(tmp_path, LINES[option])
    sampled = {"do_sample": True, "details": True}
    stops = ["x", "y", "z"]
    bodies: dict[tuple[str, str], dict[str, Any]] = {
        ("lmi", "max_best_of"): {"inputs": "a", "parameters": {"best_of": 3, **sampled}},
        ("lmi", "max_stop_strings"): {"inputs": "a", "parameters": {"stop_sequences": stops}},
        ("lmi", "max_logprobs"): {"inputs": "a", "parameters": {"top_n_tokens": 3}},
        ("tgi", "max_best_of"): {"inputs": "a", "parameters": {"best_of": 3, **sampled}},
        ("tgi", "max_stop_strings"): {"inputs": "a", "parameters": {"stop": stops}},
        ("tgi", "max_logprobs"): {"inputs": "a", "parameters": {"top_n_tokens": 3, "details": True}},
        ("ovms.completions", "max_best_of"): {"model": "demo", "prompt": "a", "n": 3},
        ("ovms.completions", "max_stop_strings"): {"model": "demo", "prompt": "a", "stop": stops},
        ("ovms.completions", "max_logprobs"): {"model": "demo", "prompt": "a", "logprobs": 3},
    }
    path = {"lmi": LMI, "tgi": "/generate", "ovms.completions": "/v3/completions"}[dialect]
    body = bodies[dialect, option]
    assert is_refused(found[dialect], path, **body)
    assert not is_refused(dialects(tmp_path, "")[dialect], path, **body)


def test_every_sampling_option_holds_where_a_request_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"do_sample": true, "top_p": 0.5, "top_k": 3}', encoding="utf-8")
    line = (
        "--temp 0.3 --top-k 7 --top-p 0.9 --min-p 0.2 --typical 0.8 --repeat-penalty 1.1 --presence-penalty 0.5 "
        "--frequency-penalty -0.5 --seed 42 --chat-format openai"
    )
    values = (0.3, 7, 0.9, 0.2, 0.8, 1.1, 0.5, -0.5, 42)
    names = [one.name.removeprefix("default_") for one in OPTIONS if one.group is SamplingSettings]

    def sampled(line: str, api: str, path: str, **body: object) -> tuple[object, ...]:
        sampling = parse(dialects(tmp_path, line)[api], path, **body).requests[0].sampling
        return tuple(getattr(sampling, name) for name in names)

    for api, path, body in (
        ("lmi.v1_chat", CHAT, {"messages": MESSAGES}),
        ("openai.completions", "/v1/completions", {"prompt": "a"}),
        ("llamacpp.completion", "/completion", {"prompt": "a"}),
        ("ollama.generate", "/api/generate", {"model": "m", "prompt": "a"}),
        ("text", "/api/generate-one", {"id": 1, "prompt": "a", "maxLength": 1}),
    ):
        assert sampled(line, api, path, **body) == values, api
        assert sampled(f"{line} --generation-config none", api, path, **body) == values, api
    lmi_body = {"inputs": "a", "parameters": {"do_sample": True}}
    assert sampled(line, "lmi", LMI, **lmi_body) == sampled("", "lmi", LMI, **lmi_body)
    assert sampled(f"{line} --generation-config all", "lmi", LMI, **lmi_body) == values


def test_the_text_service_samples_as_the_models_own_files_say(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"do_sample": true, "temperature": 0.5}', encoding="utf-8")
    assert text(dialects(tmp_path, "")).requests[0].sampling.temperature == 0.5


def test_the_models_name_is_in_the_answers(tmp_path: Path) -> None:
    assert '"model":"other"' in chat(dialects(tmp_path, "--name other"), max_completion_tokens=3)


def test_without_options_lmi_has_the_defaults_that_the_dialect_states(tmp_path: Path) -> None:
    profile = model_profile(resolve([], {}, tmp_path))
    assert options_of(profile) == LmiOptions(model=profile)
    assert (profile.limits, profile.overriding_defaults, profile.thinks) == (Limits(), {}, False)
