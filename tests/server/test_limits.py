"""What an operator's limits come to in every API: status, words, and when to come again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from dragoman.errors import DeadlineTooShort, QueueTimeout, ServerError
from dragoman.server.admission import Admission, Forecast, QueueBounds
from dragoman.server.apis.tgi import tgi_info
from dragoman.server.app import ServerConfig
from dragoman.server.generation.prepare import ServiceLimits
from dragoman.server.generation.service import Service
from dragoman.server.observation.record import CallRecord, RequestRecord, enter_call
from dragoman.server.registry import ServedModel
from dragoman.server.security.keyring import KeySources
from dragoman.tokenizer.chat_template import ChatTemplate
from dragoman.types import GenerationRequest, Limits, TextPrompt, TraceContext
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.fake_engine import ABILITIES, FakeEngine, saying
from tests.support.real_dialects import real_dialects
from tests.support.running_server import RunningServer, running_server
from tests.support.tables import table

TEMPLATE = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


@dataclass(frozen=True)
class Route:
    """A way to ask the model `bytes`. `overloaded`, `too_long`, `late`: the statuses of these errors."""

    path: str
    body: dict[str, Any]
    overloaded: int
    too_long: int
    late: int


ROUTES = (
    Route("/v1/completions", {"model": "bytes", "prompt": "Hi"}, 429, 400, 503),
    Route("/v1/chat/completions", {"model": "bytes", **CHAT}, 429, 400, 503),
    Route("/v3/completions", {"model": "bytes", "prompt": "Hi"}, 429, 400, 503),
    Route("/predictions/bytes", {"inputs": "Hi"}, 503, 424, 424),
    Route("/generate?model_name=bytes", {"inputs": "Hi"}, 429, 422, 424),
    Route("/api/generate-one?model_name=bytes", {"id": 1, "prompt": "Hi", "maxLength": 5}, 503, 400, 504),
)
EVERY_ROUTE = table("route", ROUTES, ids=lambda route: route.path.partition("?")[0])


@contextmanager
def serving(
    error: ServerError | None = None,
    limits: ServiceLimits | None = None,
    admission: Admission | None = None,
    bounds: Limits | None = None,
    *,
    cache_salt: bool = True,
) -> Iterator[tuple[httpx.Client, FakeEngine]]:
    """A client of a server with the model `bytes`, which raises `error` in place of its first output."""
    abilities = replace(ABILITIES, queue_timeout=True, priority=True, cache_salt=cache_salt)
    engine = FakeEngine(saying("Hello"), capabilities=abilities, error=error)
    service = Service(name="bytes", engine=engine, tokenizer=ByteTokenizer(), chat_template=TEMPLATE, limits=limits)
    dialects = real_dialects(limits=bounds or Limits(), settings={"chat_format": "openai"})
    with running_server(dialects=dialects) as server:
        _add(
            server,
            ServedModel("bytes", service, engine, dialects, admission or Admission("bytes"), limits=bounds or Limits()),
        )
        with httpx.Client(base_url=server.url, timeout=30) as client:
            yield client, engine


def _add(server: RunningServer, model: ServedModel) -> None:
    server.registry.add(model)


def full_of_tokens(calls: ExitStack) -> Admission:
    """A door behind which a prompt of 50 tokens waits, of at most 50."""
    admission = Admission("bytes", bounds=QueueBounds(max_tokens=50))
    record = CallRecord("c", "openai", "/", requests=[RequestRecord("r", num_queued_tokens=50)])
    calls.enter_context(admission.permit(1, record))
    return admission


def full_of_requests(calls: ExitStack) -> Admission:
    admission = Admission("bytes", max_running=1, max_queued=0)
    calls.enter_context(admission.permit())
    return admission


def full_of_one_key(calls: ExitStack) -> Admission:
    admission = Admission("bytes", bounds=QueueBounds(max_of_caller=1))
    calls.enter_context(admission.permit())
    return admission


@EVERY_ROUTE
@table("full", [full_of_tokens, full_of_requests, full_of_one_key], ids=lambda full: full.__name__)
def test_a_full_queue_is_told_with_the_apis_status_and_when_to_come_again(route: Route, full: Any) -> None:
    with ExitStack() as calls, serving(admission=full(calls)) as (client, engine):
        answer = client.post(route.path, json=route.body)
        assert answer.status_code == route.overloaded
        assert answer.headers["retry-after"] == "1"
        assert "allowed" in answer.text
        assert not engine.requests


class InAWhile(Forecast):
    """Knows when to come again."""

    def retry_after_s(self) -> int:
        return 17


def test_clients_are_told_what_the_forecast_says() -> None:
    body = {"model": "bytes", "prompt": "Hi"}
    with ExitStack() as calls:
        full = Admission("bytes", max_running=1, max_queued=0, forecast=InAWhile())
        calls.enter_context(full.permit())
        with serving(admission=full) as (client, _):
            assert client.post("/v1/completions", json=body).headers["retry-after"] == "17"
    with serving(QueueTimeout("late"), ServiceLimits(queue_timeout_s=3), Admission("bytes", forecast=InAWhile())) as (
        client,
        _,
    ):
        assert client.post("/v1/completions", json=body).headers["retry-after"] == "17"


def test_the_engine_is_told_who_asks_and_in_which_trace() -> None:
    engine = FakeEngine(saying("Hello"))
    service = Service(name="bytes", engine=engine, tokenizer=ByteTokenizer())

    async def ask(caller: str, trace: TraceContext | None) -> None:
        enter_call(CallRecord("c", "openai", "/", caller=caller, trace=trace))
        await service.generate(GenerationRequest("r", TextPrompt("Hi")))

    calls = [("somebody", TraceContext("0af7651916cd43dd8448eb211c80319c")), ("", None)]
    for call in calls:
        asyncio.run(ask(*call))
    assert [(request.caller, request.trace) for request in engine.requests] == calls


def test_requests_stand_as_their_key_does_and_never_before_it(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("first: a priority=-5 share=20\nlast: b priority=3 background=yes\nany: c\n")
    engine = FakeEngine(saying("Hello"), capabilities=replace(ABILITIES, priority=True))
    plain = FakeEngine(saying("Hello"))
    with running_server(ServerConfig(key_sources=KeySources(key_file=keys))) as server:
        for name, serves in (("m", engine), ("plain", plain)):
            dialects = real_dialects(settings={"chat_format": "openai"})
            service = Service(name=name, engine=serves, tokenizer=ByteTokenizer())
            _add(server, ServedModel(name, service, serves, dialects, Admission(name)))

        def ask(key: str, model: str = "m", fields: Mapping[str, int] | None = None) -> None:
            body = {"model": model, "prompt": "Hi", **(fields or {})}
            answer = httpx.post(f"{server.url}/v1/completions", json=body, headers={"x-api-key": key})
            assert answer.status_code == 200, answer.text

        for key, fields in (("a", None), ("a", {"priority": 2}), ("b", {"priority": 1}), ("c", {"priority": 4})):
            ask(key, fields=fields)
        ask("a", "plain")
    assert [(one.priority, one.share, one.is_background) for one in engine.requests] == [
        (5, 20, False),
        (-2, 20, False),
        (-3, 1, True),
        (-4, 1, False),
    ]
    assert plain.requests[0].priority == 0, "of an engine without priorities nobody asks for one"


@EVERY_ROUTE
def test_who_has_waited_too_long_is_told_as_if_the_queue_was_full(route: Route) -> None:
    with serving(QueueTimeout("late"), ServiceLimits(queue_timeout_s=3)) as (client, engine):
        answer = client.post(route.path, json=route.body)
        assert answer.status_code == route.overloaded
        assert int(answer.headers["retry-after"]) >= 1
        assert "waited 3 s" in answer.text
        assert engine.requests[0].start_by_s is not None


@EVERY_ROUTE
@table(("field", "value"), [("x-request-timeout-ms", "500"), ("grpc-timeout", "500m")])
def test_a_deadline_that_cannot_be_met_is_told_with_its_name_and_the_forecast(
    route: Route, field: str, value: str
) -> None:
    with serving(DeadlineTooShort("no", needed_s=7.25)) as (client, engine):
        answer = client.post(route.path, json=route.body, headers={field: value})
        assert answer.status_code == route.late
        assert f"({field})" in answer.text
        assert "0.5 s" in answer.text
        assert "7.25 s away" in answer.text
        assert engine.requests[0].deadline_s is not None


def test_a_library_that_says_how_long_it_reads_is_told_so_too() -> None:
    with serving(DeadlineTooShort("no", needed_s=7.25)) as (client, engine):
        body = {"model": "bytes", "prompt": "Hi"}
        for name in ("x-stainless-read-timeout", "x-stainless-timeout"):
            answer = client.post("/v1/completions", json=body, headers={name: "0.5"})
            assert answer.status_code == 503
            assert f"({name})" in answer.json()["error"]["message"]
        url = str(client.base_url.join("/v1"))
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=8.5) as official:
            with pytest.raises(openai.InternalServerError, match=r"8\.5 s that the client allows \(x-stainless-\S+\)"):
                official.completions.create(model="bytes", prompt="Hi")
            with pytest.raises(openai.APIError):
                list(official.completions.create(model="bytes", prompt="Hi", stream=True))
        assert [request.deadline_s is None for request in engine.requests] == [False, False, False, True]


@EVERY_ROUTE
def test_a_prompt_longer_than_the_operator_allows_is_refused(route: Route) -> None:
    with serving(limits=ServiceLimits(max_prompt_tokens=1)) as (client, engine):
        answer = client.post(route.path, json=route.body)
        assert answer.status_code == route.too_long
        assert "retry-after" not in answer.headers
        assert not engine.requests
    with serving(limits=ServiceLimits(max_prompt_tokens=2)) as (client, _):
        assert client.post(route.path, json=route.body).status_code in (200, 206)


def test_tgis_clients_are_told_how_long_prompts_may_be() -> None:
    engine = FakeEngine(saying("Hello"))
    service = Service(name="bytes", engine=engine, tokenizer=ByteTokenizer())
    for most, told in ((7, 7), (None, ABILITIES.max_model_len - 1), (10**6, ABILITIES.max_model_len - 1)):
        limits = Limits(max_prompt_tokens=most)
        model = ServedModel("bytes", service, engine, real_dialects(), Admission("bytes"), limits=limits)
        assert tgi_info(model).max_input_tokens == told


def test_the_words_for_a_prompt_that_is_too_long_name_the_bound_that_was_met() -> None:
    with serving(limits=ServiceLimits(max_prompt_tokens=10)) as (client, _):
        told = client.post("/v1/completions", json={"model": "bytes", "prompt": "x" * 11}).json()["error"]
        assert told["message"].startswith("A prompt may have at most 10 tokens here. However, your prompt alone has 11")
        assert told["param"] == "prompt"
        cut = {"model": "bytes", "prompt": "x" * 11, "truncate_prompt_tokens": 10}
        assert client.post("/v1/completions", json=cut).status_code == 200
        cut["truncate_prompt_tokens"] = 11
        assert client.post("/v1/completions", json=cut).status_code == 400


def test_a_context_that_is_too_short_is_told_with_names_of_the_body() -> None:
    question = {"messages": [{"role": "user", "content": "Hi"}]}
    long_one = {"messages": [{"role": "user", "content": "x" * 5000}]}
    openai = {"accept": "text/event-stream"}
    with serving() as (client, _):
        for path, body, param in (
            ("/v1/chat/completions", {**question, "max_completion_tokens": 10**6}, "max_completion_tokens"),
            ("/v1/chat/completions", {**question, "max_tokens": 10**6}, "max_tokens"),
            ("/v1/chat/completions", long_one, "messages"),
            ("/v1/responses", {"input": "Hi", "max_output_tokens": 10**6}, "max_output_tokens"),
            ("/v1/responses", {"input": "x" * 5000}, "input"),
        ):
            answer = client.post(path, json={"model": "bytes", **body}, headers=openai)
            told = answer.json()["error"]
            assert (answer.status_code, told["param"]) == (400, param)
            assert "maximum context length" in told["message"]
            if param.startswith("max_"):
                assert f"or lower {param}." in told["message"]


def test_an_answer_longer_than_the_operator_allows_is_refused_where_it_was_asked_for() -> None:
    limits = ServiceLimits(max_completion_tokens=4)
    with serving(limits=limits) as (client, engine):
        asking = {"model": "bytes", "prompt": "Hi"}
        told = client.post("/v1/completions", json={**asking, "max_tokens": 5})
        assert told.status_code == 400
        assert told.json()["error"]["message"] == "max_tokens must be at most 4 here, got 5"
        assert client.post("/v1/completions", json={**asking, "max_tokens": 4}).status_code == 200
        assert client.post("/v1/completions", json=asking).status_code == 200  # OpenAI's own default is 16
        assert client.post("/v1/chat/completions", json={"model": "bytes", **CHAT}).status_code == 200
        lmi = {"inputs": "Hi", "parameters": {"max_new_tokens": 100}}  # which clips there, as it does at the context
        assert client.post("/predictions/bytes", json=lmi).status_code == 200
        assert [request.max_tokens for request in engine.requests] == [4, 4, 4, 4]


def test_more_prompts_in_a_call_than_the_operator_allows_are_refused_in_every_api() -> None:
    with serving(bounds=Limits(max_prompts=2)) as (client, _):
        calls: list[tuple[str, dict[str, Any], int]] = [
            ("/v1/completions", {"model": "bytes", "prompt": ["a", "b", "c"]}, 400),
            ("/predictions/bytes", {"inputs": ["a", "b", "c"]}, 424),
            ("/api/generate-batch?model_name=bytes", {"prompts": [{"id": i, "prompt": "a"} for i in range(3)]}, 400),
        ]
        for path, body, status in calls:
            answer = client.post(path, json=body)
            assert answer.status_code == status, path
            assert "2" in answer.text
        assert client.post("/v1/completions", json={"model": "bytes", "prompt": ["a", "b"]}).status_code == 200


@table("path", ["/v1/completions", "/v1/chat/completions", "/v3/completions"])
def test_a_salt_reaches_the_engine_unless_it_is_none(path: str) -> None:
    body = {"model": "bytes", **(CHAT if "chat" in path else {"prompt": "Hi"})}
    with serving() as (client, engine):
        answer = client.post(path, json={**body, "cache_salt": "mine"})
        assert answer.status_code == 200
        assert "x-dragoman-ignored" not in answer.headers
        assert engine.requests[-1].cache_salt == "mine"
        told = client.post(path, json={**body, "cache_salt": ""})
        assert told.status_code == 400
        assert "cache_salt" in told.text
    with serving(cache_salt=False) as (client, _):
        told = client.post(path, json={**body, "cache_salt": "mine"})
        assert told.status_code == 400
        assert "cache_salt" in told.text


@table("path", ["/v1/completions", "/v1/chat/completions", "/v3/completions"])
def test_the_smaller_priority_goes_first_and_the_operator_bounds_it(path: str) -> None:
    body = {"model": "bytes", **(CHAT if "chat" in path else {"prompt": "Hi"})}
    with serving() as (client, engine):
        assert client.post(path, json={**body, "priority": 7}).status_code == 200
        assert engine.requests[-1].priority == -7
        assert "x-dragoman-ignored" not in client.post(path, json={**body, "priority": 0}).headers
        told = client.post(path, json={**body, "priority": -1})
        assert told.status_code == 400
        assert "priority" in told.text
        assert "at least 0" in told.text
    with serving(bounds=Limits(min_priority=-5)) as (client, engine):
        assert client.post(path, json={**body, "priority": -5}).status_code == 200
        assert engine.requests[-1].priority == 5
