"""The `text-generation` package, made for Text Generation Inference, works on TGI's routes and on LMI with tgi_compat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import text_generation
from text_generation.errors import ValidationError

from tests.support.any_engine import serve_demo
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.filterwarnings(
    "ignore:The `dict` method is deprecated"
)  # the package calls it; pydantic warns

QUESTION = "What is deep learning?"


@pytest.fixture(scope="module")
def compatible(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serve_demo(engine, tmp_path_factory.mktemp("served"), "--tgi-compat") as running:
        yield running


@pytest.fixture(params=["/", "/invocations"])
def client(request: pytest.FixtureRequest, compatible: ServerProcess) -> text_generation.Client:
    path = str(request.param)
    return text_generation.Client(compatible.base_url + path.rstrip("/"), timeout=60)


def test_an_answer_has_text_and_details(client: text_generation.Client) -> None:
    answer = client.generate(QUESTION, max_new_tokens=12, decoder_input_details=True)
    assert answer.details is not None
    assert answer.generated_text == "".join(token.text for token in answer.details.tokens)
    assert answer.details.generated_tokens == 12
    assert answer.details.finish_reason == "length"
    assert len(answer.details.prefill) > 3


def test_a_stream_gives_the_same_tokens(client: text_generation.Client) -> None:
    whole = client.generate(QUESTION, max_new_tokens=12)
    pieces = list(client.generate_stream(QUESTION, max_new_tokens=12))
    assert whole.details is not None
    assert [piece.token.id for piece in pieces] == [token.id for token in whole.details.tokens]
    assert pieces[-1].generated_text == whole.generated_text


def test_stop_seed_truncate_and_best_of_have_their_effects(client: text_generation.Client) -> None:
    stopped = client.generate(QUESTION, max_new_tokens=40, stop_sequences=["learning"])
    assert stopped.details is not None
    assert stopped.details.finish_reason == "stop_sequence"
    sampled = [
        client.generate("Write a", max_new_tokens=10, do_sample=True, temperature=2.0, seed=seed) for seed in (1, 1, 2)
    ]
    assert sampled[0].generated_text == sampled[1].generated_text
    assert sampled[0].generated_text != sampled[2].generated_text
    best = client.generate("Write a", max_new_tokens=6, do_sample=True, best_of=3, truncate=1)
    assert best.details is not None
    assert best.details.best_of_sequences is not None
    assert len(best.details.best_of_sequences) == 2


@pytest.mark.needs("typical_p")
def test_typical_sampling_has_its_effect(client: text_generation.Client) -> None:
    hot: dict[str, Any] = {"max_new_tokens": 10, "do_sample": True, "temperature": 2.0, "seed": 1}
    plain, typical = (client.generate("Write a", **hot, **more) for more in ({}, {"typical_p": 0.2}))
    assert plain.generated_text != typical.generated_text


def test_bad_parameters_raise_the_packages_own_error(compatible: ServerProcess) -> None:
    client = text_generation.Client(compatible.base_url, timeout=60)
    with pytest.raises(ValidationError, match="best_of"):
        client.generate(QUESTION, do_sample=True, best_of=1000)
