"""The options of speculative decoding, their names in other servers, and their effect on requests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dragoman.cli.arguments import read_arguments
from dragoman.compose import model_profile
from dragoman.config.resolve import Config, ConfigError, resolve
from dragoman.server.api import HttpCall
from dragoman.server.apis import set_up_all
from tests.support.tables import table


def resolved(tmp_path: Path, line: str, properties: str = "") -> Config:
    (tmp_path / "serving.properties").write_text(properties, encoding="utf-8")
    return resolve(read_arguments(line.split()).givens, {}, tmp_path)


@table(
    ("line", "said"),
    [
        (
            "--draft-model small --speculation lookup",
            "--draft-model=small (command line): must not be given together with --speculation=lookup (command line); "
            "allowed: auto, draft",
        ),
        ("--speculation draft", "--speculation=draft (command line): must not be given without draft_model"),
        ("--speculation guess", "must be one of auto, off, lookup, suffix, draft"),
    ],
)
def test_draft_model_and_speculation_must_agree(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(tmp_path, line)
    assert said in str(caught.value)


@table(
    ("line", "name", "value"),
    [
        ("option.prompt_lookup=true", "speculation", "lookup"),
        ("option.prompt_lookup=false", "speculation", "auto"),
        ("option.speculative_draft_model=/small", "draft_model", Path("/small")),
        ("option.speculative_model=/small", "draft_model", Path("/small")),
        ("option.num_speculative_tokens=4", "num_assistant_tokens", 4),
        ("option.speculative_length=4", "num_assistant_tokens", 4),
        ("option.ngram_prompt_lookup_max=4", "max_ngram_size", 4),
        ("option.speculative_disable_by_batch_size=4", "speculative_max_batch", 4),
    ],
)
def test_the_names_of_other_servers_act(tmp_path: Path, line: str, name: str, value: object) -> None:
    assert getattr(resolved(tmp_path, "", line + "\n").speculation, name) == value


@table("route", ["openai.completions", "ovms.completions", "openai.chat", "ovms.chat"])
@table(("line", "acts"), [("--speculation off", False), ("", True), ("--draft-model small", True)])
def test_num_assistant_tokens_of_requests_acts_with_speculation(
    tmp_path: Path, route: str, line: str, acts: bool
) -> None:
    dialect = set_up_all(model_profile(resolved(tmp_path, line)))[route]
    is_completion = route.endswith("completions")
    path = ("/v1/" if route.startswith("openai") else "/v3/") + ("completions" if is_completion else "chat/completions")
    content = {"prompt": "a"} if is_completion else {"messages": [{"role": "user", "content": "a"}]}
    body = {"model": "m", "num_assistant_tokens": 3, "stream_options": None, "tools": None, **content}
    call = dialect.open(
        HttpCall("POST", path, json.dumps(body).encode(), {"content-type": "application/json"}, request_id="r")
    ).parse()
    assert call.requests[0].sampling.num_assistant_tokens == (3 if acts else None)
    assert ("num_assistant_tokens" in call.ignored) is not acts
