"""The ledger's arithmetic: what is held is what was reserved and not yet released, and never more than there is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.errors import NoMemory
from dragoman.host.ledger import Holding, MemoryLedger
from dragoman.host.machine import MIB
from dragoman.server.hosting import ModelMemory
from tests.support.tiers import examples

LIMIT = 100


def ledger(limit: int = LIMIT, free: int = 2**40) -> MemoryLedger:
    return MemoryLedger(limit, lambda: free)


def test_an_exact_fit_is_accepted_and_one_byte_more_is_refused() -> None:
    books = ledger()
    books.reserve("a", ModelMemory(40, 30, 20))
    assert (books.held_bytes, books.available_bytes()) == (90, 10)
    with pytest.raises(NoMemory):
        books.reserve("b", ModelMemory(11))
    books.reserve("b", ModelMemory(10))
    assert books.available_bytes() == 0


def test_a_refusal_has_all_the_numbers_and_changes_nothing() -> None:
    books = ledger(100 * MIB)
    books.reserve("small", ModelMemory(10 * MIB))
    books.reserve("large", ModelMemory(50 * MIB, 5 * MIB))
    with pytest.raises(NoMemory) as caught:
        books.reserve("next", ModelMemory(40 * MIB))
    assert caught.value.message == (
        "Model next does not fit into memory: it needs 40 MiB, 35 MiB are available (large holds 55 MiB, small holds 10 MiB)"
    )
    assert books.held_bytes == 65 * MIB


def test_memory_of_other_programs_counts() -> None:
    assert ledger(free=7).available_bytes() == 7
    with pytest.raises(NoMemory, match="no model is loaded"):
        ledger(free=7).reserve("a", ModelMemory(8))


def test_a_leaving_model_hands_its_room_only_to_its_successor() -> None:
    books = ledger()
    old = books.reserve("old", ModelMemory(80))
    new = books.reserve("new", ModelMemory(90), [old])
    assert books.held_bytes <= LIMIT
    assert books.available_bytes() == 0
    with pytest.raises(NoMemory):
        books.reserve("third", ModelMemory(20))
    books.release(old)
    assert (books.held_bytes, books.available_bytes()) == (90, 10)
    books.release(new)
    books.release(new)
    assert books.held_bytes == 0


def test_an_estimate_is_corrected() -> None:
    books = ledger()
    holding = books.reserve("a", ModelMemory(50))
    books.correct(holding, ModelMemory(30, 5))
    assert books.available_bytes() == 65
    books.release(holding)
    books.correct(holding, ModelMemory(30))
    assert books.held_bytes == 0


def test_the_operators_start_is_not_refused() -> None:
    books = ledger()
    books.reserve("a", ModelMemory(150), is_forced=True)
    assert books.available_bytes() == 0


@given(st.data())
@settings(max_examples=examples(200))
def test_holdings_add_up_and_stay_below_the_limit(data: st.DataObject) -> None:
    """Random loads, corrections, replacements and unloads, beside plain bookkeeping of what was promised."""
    books = ledger()
    held: list[Holding] = []
    promised: list[tuple[list[Holding], Holding]] = []  # who leaves for whom
    for _ in range(data.draw(st.integers(1, 30))):
        staying = [one for one in held if not any(one in leaving for leaving, _ in promised)]
        match data.draw(st.sampled_from(("load", "correct", "release", "succeed", "leave"))):
            case "load":
                before = books.held_bytes
                memory = data.draw(st.builds(ModelMemory, *(st.integers(0, 40) for _ in range(3))))
                try:
                    held.append(books.reserve("m", memory))
                except NoMemory:
                    assert memory.total > LIMIT - before
                    assert books.held_bytes == before
                else:
                    assert books.held_bytes == before + memory.total
            case "correct" if staying:
                one = data.draw(st.sampled_from(staying))
                books.correct(one, ModelMemory(data.draw(st.integers(0, one.memory.total))))
            case "release" if staying:
                one = data.draw(st.sampled_from(staying))
                held.remove(one)
                books.release(one)
            case "succeed" if staying:
                leaving = data.draw(st.lists(st.sampled_from(staying), unique_by=id, min_size=1))
                memory = ModelMemory(data.draw(st.integers(0, LIMIT)))
                room = books.available_bytes(leaving)
                if memory.total <= room:
                    held.append(books.reserve("m", memory, leaving))
                    promised.append((leaving, held[-1]))
            case "leave" if promised:
                leaving, _ = promised.pop()
                for one in leaving:
                    held.remove(one)
                    books.release(one)
        assert set(map(id, books.holdings)) == set(map(id, held))
        assert 0 <= books.held_bytes <= LIMIT
        if not promised:
            assert books.held_bytes == sum(one.memory.total for one in held)
            assert books.available_bytes() == LIMIT - books.held_bytes
