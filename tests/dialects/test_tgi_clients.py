"""huggingface_hub's client against TGI's routes and against LMI's routes with tgi_compat, over a local socket."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import GenerationError, OverloadedError, ValidationError

from dragoman.server.api import Dialect, HttpCall, ModelProfile
from dragoman.server.apis.lmi.dialect import LmiDialect
from dragoman.server.apis.lmi_wire.parameters import LmiOptions
from dragoman.server.apis.tgi import TgiDialect
from tests.support.golden import Failure, answer
from tests.support.tables import table

TEXT = " Deep learning is fun. 🍊"
TGI = TgiDialect(ModelProfile())
LMI = LmiDialect(LmiOptions(tgi_compat=True))


@contextmanager
def serving(dialect: Dialect, failure: Failure | None = None) -> Iterator[str]:
    """The base URL of a server that answers every POST with the dialect and scripted generations."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = answer(dialect, HttpCall("POST", self.path, body, headers, request_id="r"), failure)
            self.send_response(reply.status)
            self.send_header("content-type", reply.media_type)
            self.end_headers()
            self.wfile.write(reply.body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the test's output is the test's."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(params=["tgi /", "tgi /generate", "lmi /invocations"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of each route that gives a whole answer."""
    name, path = request.param.split()
    with serving(TGI if name == "tgi" else LMI) as base:
        yield base + path


@pytest.fixture(params=["tgi /", "tgi /generate_stream", "lmi /invocations"])
def stream_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of each route that gives a stream."""
    name, path = request.param.split()
    with serving(TGI if name == "tgi" else LMI) as base:
        yield base + path


def test_text_generation_returns_the_text(url: str) -> None:
    assert InferenceClient(model=url).text_generation("Hi", max_new_tokens=20) == TEXT


def test_text_generation_with_details_has_every_field_of_its_tokens(url: str) -> None:
    output = InferenceClient(model=url).text_generation(
        "Hi you",
        details=True,
        decoder_input_details=True,
        top_n_tokens=2,
        seed=42,
        do_sample=True,
        max_new_tokens=2,
        stop=["x"],
        truncate=5,
        typical_p=0.9,
    )
    details = output.details
    assert details is not None
    assert (output.generated_text, details.finish_reason, details.generated_tokens) == (" Deep learning", "length", 2)
    assert details.seed == 42
    assert [token.text for token in details.prefill] == ["Hi", " you"]
    assert [(token.id, token.logprob, token.special) for token in details.tokens] == [
        (300, -0.25, False),
        (301, -0.5, False),
    ]
    assert details.top_tokens is not None
    assert [len(tokens) for tokens in details.top_tokens] == [2, 2]


def test_best_of_gives_the_other_sequences(url: str) -> None:
    output = InferenceClient(model=url).text_generation("Hi", details=True, best_of=3, do_sample=True, max_new_tokens=1)
    assert output.details is not None
    others = output.details.best_of_sequences
    assert others is not None
    assert [other.generated_text for other in others] == [" Deep", " Deep"]


def test_streamed_texts_add_up_to_the_answer(stream_url: str) -> None:
    client = InferenceClient(model=stream_url)
    assert "".join(client.text_generation("Hi", stream=True, max_new_tokens=20)) == TEXT


def test_the_last_streamed_item_has_text_and_details(stream_url: str) -> None:
    client = InferenceClient(model=stream_url)
    items = list(client.text_generation("Hi", stream=True, details=True, max_new_tokens=2, top_n_tokens=1))
    assert all(isinstance(item.token.logprob, float) for item in items)
    assert all(item.top_tokens is not None and len(item.top_tokens) == 1 for item in items)
    assert items[-1].generated_text == " Deep learning"
    assert items[-1].details is not None
    assert (items[-1].details.finish_reason, items[-1].details.input_length) == ("length", 1)
    assert items[0].generated_text is None


@table(("dialect", "path"), [(TGI, "/generate"), (LMI, "/invocations")])
def test_a_bad_parameter_raises_the_clients_validation_error(dialect: Dialect, path: str) -> None:
    with serving(dialect) as base, pytest.raises(ValidationError, match="top_p"):
        InferenceClient(model=base + path).text_generation("Hi", top_p=3.0)


@table(("dialect", "path"), [(TGI, "/generate"), (LMI, "/invocations")])
def test_a_full_queue_raises_the_clients_overloaded_error(dialect: Dialect, path: str) -> None:
    failure = Failure("overloaded", "The queue is full")
    with serving(dialect, failure) as base, pytest.raises(OverloadedError, match="The queue is full"):
        InferenceClient(model=base + path).text_generation("Hi")


@table(("dialect", "path"), [(TGI, "/generate_stream"), (LMI, "/invocations")])
def test_a_failure_inside_a_stream_raises_after_the_first_tokens(dialect: Dialect, path: str) -> None:
    with serving(dialect, Failure("engine_failed", "The engine failed", after=2)) as base:
        client = InferenceClient(model=base + path)
        stream = iter(client.text_generation("Hi", stream=True))
        assert [next(stream), next(stream)] == [" Deep", " learning"]
        with pytest.raises(GenerationError, match="The engine failed"):
            next(stream)
