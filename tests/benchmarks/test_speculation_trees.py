"""What a second branch of guesses would bring: counted on texts of which it is plain what can be guessed."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest

from benchmarks.speculation.tasks import EDIT, JSON
from benchmarks.speculation.trees.__main__ import CHAIN, HINDSIGHT, SHAPES, TREE, Prices, follow, line, parse_arguments
from benchmarks.speculation.trees.answers import COPIER, Answer, answers_of

PRICES = Prices(0.03, 0.06)
COUNTED = 1000  # of a task that is no warm-up


def answer(prompt: Sequence[int], *token_ids: int) -> Answer:
    return Answer(COUNTED, prompt, array("q", token_ids), None)


NEW = answer([1, 2, 3], *range(10, 30))
REPEATED = answer([*range(10, 30), 1, 10], *range(11, 30))


def older(begin: int) -> Answer:
    """What follows three tokens is others the second time; the answer goes on as the first time. Each `begin` its own."""
    run, first, second = (list(range(begin + offset, begin + offset + 8)) for offset in (0, 10, 20))
    return answer([*run[:3], *first, *run[:3], *second, *run[:2]], run[2], *first)


OLDER = [older(begin) for begin in range(100, 2000, 100)]


@pytest.mark.parametrize("shape", SHAPES)
def test_of_a_text_that_nobody_can_guess_every_step_gives_a_token(shape: str) -> None:
    count = follow([NEW], shape, 7, PRICES)
    assert (count.tokens, count.steps, count.rows, count.cost) == (19, 19, 19, 19.0)


@pytest.mark.parametrize("shape", SHAPES)
def test_where_there_is_one_copy_a_tree_is_a_chain(shape: str) -> None:
    count = follow([REPEATED], shape, 5, PRICES)
    assert (count.tokens, count.steps, count.rows) == (18, 3, 18)
    assert count.cost == pytest.approx(3 * (1 + 5 * PRICES.cheap))


def test_a_second_branch_holds_where_the_older_of_two_copies_comes_again() -> None:
    chain, tree, hindsight = (follow(OLDER, shape, 7, PRICES) for shape in SHAPES)
    assert chain.tokens == tree.tokens == hindsight.tokens == 8 * len(OLDER)
    assert hindsight.steps == len(OLDER)
    assert hindsight.steps < tree.steps < chain.steps == 2 * len(OLDER)


def test_tasks_that_warm_up_are_followed_and_not_counted() -> None:
    counted = older(100)
    first = Answer(0, counted.prompt, counted.token_ids, None)
    assert follow([first], TREE, 7, PRICES).tokens == 0
    known, new = (follow(answers, CHAIN, 8, PRICES) for answers in ([first, counted], [counted]))
    assert known.tokens == new.tokens
    assert known.steps < new.steps


def test_as_many_are_verified_as_pay() -> None:
    assert follow(OLDER, CHAIN, None, Prices(5.0, 5.0)).rows == follow(OLDER, CHAIN, None, Prices(5.0, 5.0)).steps
    assert follow(OLDER, CHAIN, None, Prices(0.0, 0.0)).rows > follow(OLDER, CHAIN, 2, PRICES).rows


def test_gains_are_of_tokens_by_what_their_rows_cost() -> None:
    found = line(EDIT, OLDER, 7, PRICES)
    rates = {}
    for shape in SHAPES:
        count = follow(OLDER, shape, 7, PRICES)
        rates[shape] = count.tokens / count.cost
    assert found["gain"][HINDSIGHT] == pytest.approx(rates[HINDSIGHT] / rates[CHAIN] - 1, abs=1e-3)
    assert found["gain"][HINDSIGHT] > found["gain"][TREE] > 0


def test_answers_of_the_model_that_copies_follow_their_grammars() -> None:
    with answers_of(COPIER) as make:
        (edit,), (record,) = make(EDIT, 1), make(JSON, 1)
    assert edit.masker is None
    assert record.masker is not None
    assert record.masker.validate(record.token_ids.tolist()) == len(record.token_ids)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--tasks", "4"], "--tasks: is 4, must be more than 4"),
        (["--guesses", "33"], "--guesses: is 33, must be at most 32"),
        (["--guesses", "0"], "--guesses: is '0', must be a whole number from 1 on"),
        (["--row-prices", "0.1", "nan"], "--row-prices: is [0.1, nan], must be shares from 0 to 10"),
    ],
)
def test_what_cannot_be_counted_is_refused(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(words)
    assert says in capsys.readouterr().err
