"""Every generation parameter of the LMI documents changes what a real server answers, in the way its documentation says."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.server_process import ServerProcess
from tests.support.tables import table
from tests.support.tiers import width

PROMPT = "What is Deep Learning?"
GREEDY = {"max_new_tokens": 24}
HOT = {"max_new_tokens": 24, "do_sample": True, "temperature": 2.0, "seed": 7}
BEAMS = {"max_new_tokens": 24, "num_beams": 4}


def ask(server: ServerProcess, parameters: dict[str, Any], prompt: str = PROMPT) -> dict[str, Any]:
    """The answer, with details."""
    body = {"inputs": prompt, "parameters": {"details": True, **parameters}}
    response = httpx.post(f"{server.base_url}/invocations", json=body, timeout=120)
    assert response.status_code == 200, response.text
    assert "x-dragoman-ignored" not in response.headers
    answer: dict[str, Any] = response.json()
    return answer


def text(server: ServerProcess, parameters: dict[str, Any], prompt: str = PROMPT) -> str:
    """The generated text."""
    answer: str = ask(server, parameters, prompt)["generated_text"]
    return answer


def sequences(answer: dict[str, Any]) -> list[str]:
    """The texts of all returned sequences, the first one first."""
    others = answer["details"].get("best_of_sequences", [])
    return [answer["generated_text"], *(other["generated_text"] for other in others)]


def scored(answer: dict[str, Any]) -> list[tuple[float, str]]:
    """The sequences with their cumulative log-probabilities, in the order of `sequences`."""
    details = answer["details"]
    tokens = [details["tokens"], *(other["tokens"] for other in details.get("best_of_sequences", []))]
    scores = [sum(token["log_prob"] for token in own) for own in tokens]
    return list(zip(scores, sequences(answer), strict=True))


@pytest.mark.parametrize(
    ("base", "name", "value"),
    [
        (GREEDY, "do_sample", True),
        (HOT, "temperature", 0.05),
        pytest.param(HOT, "temperature", 4.0, marks=pytest.mark.needs("temperature above 2")),
        (HOT, "seed", 8),
        (HOT, "top_k", 3),
        (HOT, "top_p", 0.3),
        pytest.param(HOT, "typical_p", 0.2, marks=pytest.mark.needs("typical_p")),
        (HOT, "min_p", 0.5),
        (HOT, "repetition_penalty", 8.0),
        (HOT | {"max_new_tokens": 80}, "presence_penalty", 2.0),
        (HOT | {"max_new_tokens": 80}, "frequency_penalty", 2.0),
        (GREEDY, "truncate", 2),
    ],
)
def test_the_text_changes_with(server: ServerProcess, base: dict[str, Any], name: str, value: object) -> None:
    if name == "do_sample":
        base = base | {"seed": 7}
        without, given = text(server, base), text(server, base | {"do_sample": value, "temperature": 2.0})
    else:
        without, given = text(server, base), text(server, base | {name: value})
    assert given != without


@pytest.mark.parametrize(
    ("base", "more"),
    [
        pytest.param(HOT, {"top_n_sigma": 0.5}, marks=pytest.mark.needs("top_n_sigma")),
        pytest.param(HOT, {"xtc_probability": 1.0, "xtc_threshold": 0.005}, marks=pytest.mark.needs("xtc_probability")),
        pytest.param(
            GREEDY, {"dry_multiplier": 50.0, "dry_allowed_length": 1}, marks=pytest.mark.needs("dry_multiplier")
        ),
    ],
)
def test_the_text_changes_with_further_samplers(
    server: ServerProcess, base: dict[str, Any], more: dict[str, Any]
) -> None:
    said = "Deep learning is a kind of machine learning that uses neural"
    prompt = f"{said} networks with many layers. {said}"
    assert text(server, base | more, prompt) != text(server, base, prompt)


@table("parameter", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 0}])
def test_sampling_from_one_token_is_greedy(server: ServerProcess, parameter: dict[str, Any]) -> None:
    assert text(server, HOT | parameter) == text(server, GREEDY)


def test_the_same_seed_gives_the_same_text(server: ServerProcess) -> None:
    assert text(server, HOT) == text(server, HOT)


@pytest.mark.parametrize("limit", [1, 5])
def test_max_new_tokens_is_the_number_of_tokens(server: ServerProcess, limit: int) -> None:
    details = ask(server, {"max_new_tokens": limit})["details"]
    assert (details["generated_tokens"], details["finish_reason"]) == (limit, "length")


@pytest.mark.parametrize("name", ["stop_sequences", "stop", "stop_words_list"])
def test_text_ends_before_a_stop_sequence(server: ServerProcess, name: str) -> None:
    whole = text(server, GREEDY)
    stop = whole.split()[4]
    answer = ask(server, GREEDY | {name: [stop]})
    assert answer["details"]["finish_reason"] == "stop_sequence"
    assert answer["generated_text"] == whole[: whole.index(stop)]
    included = text(server, GREEDY | {name: [stop], "include_stop_str_in_output": True})
    assert included == whole[: whole.index(stop) + len(stop)]


def test_text_ends_at_a_stop_token(server: ServerProcess) -> None:
    third = ask(server, GREEDY)["details"]["tokens"][2]["id"]
    details = ask(server, GREEDY | {"stop_token_ids": [third]})["details"]
    assert (details["generated_tokens"], details["finish_reason"]) == (3, "eos_token")


def test_the_end_of_sequence_can_be_ignored_or_put_off(server: ServerProcess) -> None:
    natural = ask(server, {"max_new_tokens": 200})["details"]
    assert natural["finish_reason"] == "eos_token"
    num_natural = natural["generated_tokens"]
    assert ask(server, {"max_new_tokens": 200, "ignore_eos_token": True})["details"]["generated_tokens"] == 200
    put_off = ask(server, {"max_new_tokens": 200, "min_length": num_natural + 5})["details"]
    assert put_off["generated_tokens"] >= num_natural + 5


@pytest.mark.parametrize("name", ["bad_sequences", "bad_words_list"])
def test_bad_words_do_not_occur(server: ServerProcess, name: str) -> None:
    word = text(server, GREEDY).split()[3]
    assert word not in text(server, GREEDY | {name: [word]}).split()


def test_several_sequences_are_returned(server: ServerProcess) -> None:
    assert len(sequences(ask(server, HOT | {"n": 3}))) == 3
    assert len(sequences(ask(server, BEAMS))) == 4


@pytest.mark.parametrize(("n", "best_of"), [(1, 3), (2, 6)])
def test_best_of_returns_the_likeliest_of_what_was_drawn(server: ServerProcess, n: int, best_of: int) -> None:
    for seed in width(range(3), range(1)):
        hot = HOT | {"seed": seed}
        drawn = scored(ask(server, hot | {"n": best_of}))
        best = scored(ask(server, hot | {"n": n, "best_of": best_of}))
        expected = sorted(drawn, reverse=True)[:n]
        assert [words for _, words in best] == [words for _, words in expected]
        assert [score for score, _ in best] == pytest.approx([score for score, _ in expected])
        assert best[0][0] >= scored(ask(server, hot))[0][0] - 1e-3


def test_the_length_penalty_orders_beams(server: ServerProcess) -> None:
    beams = BEAMS | {"max_new_tokens": 120}
    short, long = (sequences(ask(server, beams | {"length_penalty": penalty}, "Hello")) for penalty in (-8.0, 8.0))
    assert len(short[0]) <= len(long[0])
    assert short != long


def test_early_stopping_ends_a_beam_search_with_what_it_has(server: ServerProcess) -> None:
    beams = BEAMS | {"max_new_tokens": 120, "length_penalty": 4.0}

    def found(prompt: str, value: object) -> list[str]:
        return sequences(ask(server, beams | {"early_stopping": value}, prompt))

    prompts = ["Hello", "Thank you", PROMPT, "Name two colours."]
    assert any(found(prompt, True) != found(prompt, "never") for prompt in prompts)


def test_details_list_tokens_and_alternatives(server: ServerProcess) -> None:
    details = ask(server, GREEDY | {"logprobs": 3, "decoder_input_details": True})["details"]
    assert [len(alternatives) for alternatives in details["top_tokens"][:5]] == [3] * 5
    assert "".join(token["text"] for token in details["prefill"]).strip() == PROMPT
    assert ask(server, GREEDY | {"prompt_logprobs": 1})["details"]["prefill"]
    plain = ask(server, GREEDY)["details"]
    assert "prefill" not in plain
    assert "top_tokens" not in plain
    assert "details" not in ask(server, GREEDY | {"details": False})


def test_the_prompt_can_be_returned(server: ServerProcess) -> None:
    assert text(server, GREEDY | {"return_full_text": True}) == PROMPT + text(server, GREEDY)


def test_special_tokens_can_be_shown_and_set_off(server: ServerProcess) -> None:
    shown = {"max_new_tokens": 200, "skip_special_tokens": False}
    assert text(server, shown).endswith("<|endoftext|>")
    assert text(server, shown | {"stop_sequences": ["."]}).endswith(" layers")  # a stop text is left out all the same
    assert "<|endoftext|>" not in text(server, {"max_new_tokens": 200})
    marks = shown | {"max_new_tokens": 3, "logit_bias": {"1": 100}}
    apart = text(server, marks)
    joined = text(server, marks | {"spaces_between_special_tokens": False})
    assert apart != joined == apart.replace(" ", "")


def test_streaming_gives_a_line_per_token(server: ServerProcess) -> None:
    body = {"inputs": PROMPT, "parameters": GREEDY, "stream": True}
    response = httpx.post(f"{server.base_url}/invocations", json=body, timeout=60)
    assert response.headers["content-type"] == "application/jsonlines"
    assert len(response.text.splitlines()) == 24
