"""How many guesses are verified: as many as pay, by what steps take. Time is simulated: a clock that steps advance."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.engine.rolling.config import RollingConfig, SpeculationConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.forward.runner import ForwardBatch
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.speculate.proposer import Wish
from dragoman.engine.rolling.stats import RollingStats
from dragoman.types import EngineRequest
from tests.engine.fake_runner import FakeRunner
from tests.engine.naive import Collector, make_request, naive_sequence
from tests.engine.proposers import FunctionProposer
from tests.support.tiers import examples, width

VOCAB_SIZE = 24

RowSeconds = Callable[[int], float]


def free(num_rows: int) -> float:
    return 1.0


def dear(num_rows: int) -> float:
    """A row more costs more than what a step takes for each row that it has."""
    return float(num_rows**1.3)


def usual(num_rows: int) -> float:
    """Eight rows cost a little, more of them much."""
    return 1.0 + 0.03 * min(num_rows, 8) + 0.08 * max(num_rows - 8, 0)


def cheap(num_rows: int) -> float:
    return 1.0 + 0.005 * num_rows


class Machine:
    """Runs requests, with steps that take `seconds(rows)`, and `change_s` more if the last had others."""

    def __init__(
        self,
        seconds: RowSeconds,
        change_s: float = 0.0,
        *,
        pads: bool = False,
        max_num_seqs: int = 64,
        context_share: float = 0.0,
        num_blocks: int = 1024,
    ) -> None:
        self.now = 0.0
        self.num_steps = self.num_changes = 0
        speculation = SpeculationConfig(pads_steps=pads, context_share=context_share)
        self._config = RollingConfig(speculation=speculation, max_num_seqs=max_num_seqs)
        self._seconds, self._change_s, self._last = seconds, change_s, 0
        self._num_blocks = num_blocks

    def run(
        self, requests: Sequence[EngineRequest], guess: Callable[[Wish], Sequence[int]] | None
    ) -> tuple[float, RollingStats]:
        """The seconds that it takes, and what was counted."""
        runner = FakeRunner(
            num_blocks=self._num_blocks,
            vocab_size=VOCAB_SIZE,
            max_model_len=2_000,
            before_forward=self._advance,
        )
        proposers = [] if guess is None else [FunctionProposer(guess)]
        core = EngineCore(
            runner,
            Sampler(VOCAB_SIZE),
            self._config,
            proposers,
            clock=self.clock,
        )
        collector = Collector(core)
        for key, request in enumerate(requests):
            collector.add(key, request)
        begin = self.now
        collector.run()
        assert not collector.errors
        return self.now - begin, core.stats

    def clock(self) -> float:
        """The seconds that have passed."""
        return self.now

    def _advance(self, batch: ForwardBatch) -> None:
        num_rows = len(batch.past_lens) + batch.num_padding
        is_change = max(num_rows, 2) != self._last
        self.num_steps += 1
        self.num_changes += is_change
        self.now += self._seconds(num_rows) + self._change_s * is_change
        self._last = max(num_rows, 2)


class Guesser:
    """Knows the answers, and is right with a probability that depends on the position."""

    def __init__(self, requests: Sequence[EngineRequest], share: Callable[[int], float], seed: int = 0) -> None:
        self._answers: dict[str, list[int]] = {}
        self._share = share
        self._stream = random.Random(seed)
        for request in requests:
            self.know(request)

    def know(self, request: EngineRequest) -> None:
        """Guess for it as well."""
        self._answers[request.request_id] = naive_sequence(request, 0, VOCAB_SIZE).token_ids

    def __call__(self, wish: Wish) -> list[int]:
        sequence = wish.sequence
        begin = sequence.num_generated_tokens
        right = self._answers[sequence.group.request.request_id][begin : begin + wish.max_tokens]
        return [
            token_id if self._stream.random() < self._share(begin + place) else (token_id + 1) % VOCAB_SIZE
            for place, token_id in enumerate(right)
        ]


def requests(count: int, max_tokens: int = 160) -> list[EngineRequest]:
    return [
        make_request([1, 2, 3 + number], max_tokens, name=f"r{number}", seed=number, temperature=1.0, ignore_eos=True)
        for number in range(count)
    ]


def compared(
    count: int,
    seconds: RowSeconds,
    share: Callable[[int], float],
    *,
    change_s: float = 0.0,
    max_tokens: int = 160,
    pads: bool = False,
) -> tuple[float, RollingStats]:
    """How many times faster it is with guesses."""
    asked = requests(count, max_tokens)
    plain_s, _ = Machine(seconds, change_s).run(asked, None)
    auto_s, stats = Machine(seconds, change_s, pads=pads).run(asked, Guesser(asked, share))
    return plain_s / auto_s, stats


def test_where_rows_are_free_and_guesses_right_all_of_them_are_verified() -> None:
    speedup, stats = compared(1, free, lambda position: 1.0)
    assert speedup > 8
    assert stats.num_accepted_tokens == stats.num_draft_tokens


def test_where_a_row_costs_a_step_nothing_is_verified_but_to_learn_that() -> None:
    speedup, stats = compared(4, dear, lambda position: 1.0)
    assert speedup > 0.97
    assert stats.num_draft_tokens < 40


@pytest.mark.parametrize("change_s", [0.0, 0.25])
def test_wrong_guesses_are_given_up(change_s: float) -> None:
    speedup, stats = compared(1, usual, lambda position: 0.02, change_s=change_s, max_tokens=400)
    assert speedup > 0.97
    assert stats.num_draft_tokens < 200, "of 12,000"


class SlowGuesser:
    """Takes `first_s` to guess in a step, and `next_s` where it has in the step before."""

    def __init__(self, guesser: Guesser, machine: Machine, first_s: float, next_s: float) -> None:
        self._guesser, self._machine = guesser, machine
        self._first_s, self._next_s = first_s, next_s
        self._last = -9

    def __call__(self, wish: Wish) -> list[int]:
        steps = self._machine.num_steps
        if steps != self._last:
            self._machine.now += self._next_s if steps == self._last + 1 else self._first_s
            self._last = steps
        return self._guesser(wish)


@pytest.mark.full("the economy of 4,800 simulated steps; that wrong guesses are given up is asked above")
def test_looking_for_guesses_takes_hardly_any_time_where_nothing_holds_whatever_contexts_are_taken_for() -> None:
    """Of a small model with long contexts they were taken for all of a step: it was looked in every one, for nothing."""
    asked = requests(16, 300)
    plain_s, _ = Machine(lambda rows: 2 + rows / 16).run(asked, None)
    machine = Machine(lambda rows: 2 + rows / 16, context_share=1e-2)
    guesser = SlowGuesser(Guesser(asked, lambda position: 0.0), machine, 1.5, 1.0)
    seconds, _ = machine.run(asked, guesser)
    assert seconds < 1.1 * plain_s


@pytest.mark.full("the economy of 1,900 simulated steps; that guesses are found to pay again is asked below")
def test_guesses_are_found_to_pay_although_looking_takes_long_after_a_pause() -> None:
    """A look that takes in what came in a pause may take more than guesses save in the step; the next one does not."""
    asked = requests(1, 1_900)
    plain_s, _ = Machine(usual).run(asked, None)
    machine = Machine(usual)
    guesser = SlowGuesser(Guesser(asked, lambda position: 0.8 if position > 500 else 0.0), machine, 3.0, 0.3)
    seconds, _ = machine.run(asked, guesser)
    assert seconds < plain_s / 1.25


def test_a_text_that_begins_to_repeat_itself_is_noticed_without_a_guess_being_verified() -> None:
    speedup, stats = compared(1, usual, lambda position: float(position >= 200), max_tokens=400)
    assert speedup > 1.5
    assert stats.num_accepted_tokens > 120


def test_a_change_of_rows_that_costs_much_is_avoided() -> None:
    asked = requests(1, 300)

    def every_third(position: int) -> float:
        return 0.9 if position % 3 else 0.1

    plain_s, _ = Machine(usual, change_s=3.0).run(asked, None)
    auto_s, _ = Machine(usual, change_s=3.0).run(asked, Guesser(asked, every_third))
    assert plain_s / auto_s > 0.97


def test_where_a_change_of_rows_costs_more_than_rows_do_steps_keep_theirs() -> None:
    asked = requests(1, 600)
    seconds, changes = {}, {}
    for pads in (False, True):
        guesser, lengths = Guesser(asked, lambda position: 1.0), random.Random(1)

        def guess(wish: Wish, guesser: Guesser = guesser, lengths: random.Random = lengths) -> Sequence[int]:
            return guesser(wish)[: lengths.randrange(1, 8)]  # copies end sooner or later

        machine = Machine(usual, change_s=0.25, pads=pads)
        seconds[pads], _ = machine.run(asked, guess)
        changes[pads] = machine.num_changes
    assert seconds[True] < 0.95 * seconds[False]
    assert changes[True] < 0.5 * changes[False]


def test_rows_for_nobody_are_given_up_where_nothing_is_guessed_any_more() -> None:
    steps = []

    def seconds(num_rows: int) -> float:
        steps.append(num_rows)
        return usual(num_rows)

    asked = requests(1, 400)
    Machine(seconds, change_s=0.25, pads=True).run(asked, Guesser(asked, lambda position: float(position < 100)))
    assert max(steps) > 4
    assert max(steps[-200:]) <= 2  # which takes no longer than one


def test_the_surest_guesses_of_a_batch_are_verified() -> None:
    asked = requests(6)
    right = {asked[0].request_id, asked[1].request_id}
    guessers = {True: Guesser(asked, lambda position: 1.0), False: Guesser(asked, lambda position: 0.1)}
    verified: dict[str, int] = {}

    def guess(wish: Wish) -> list[int]:
        return guessers[wish.sequence.group.request.request_id in right](wish)

    machine = Machine(usual)
    runner = FakeRunner(num_blocks=1024, vocab_size=VOCAB_SIZE, before_forward=machine._advance)
    core = EngineCore(runner, Sampler(VOCAB_SIZE), RollingConfig(), [FunctionProposer(guess)], clock=machine.clock)
    collector = Collector(core)
    for key, request in enumerate(asked):
        collector.add(key, request)
    collector.run()
    for key, request in enumerate(asked):
        verified[request.request_id] = sum(output.num_draft_tokens for output in collector.outputs[key])
    assert min(verified[name] for name in right) > 1.5 * max(
        count for name, count in verified.items() if name not in right
    )


def test_a_request_that_wants_no_guesses_gets_none_and_others_as_many_as_pay() -> None:
    asked = requests(2)
    plain = make_request([1, 2, 9], 160, name="plain", temperature=1.0, ignore_eos=True, num_assistant_tokens=0)
    guesser = Guesser([*asked, plain], lambda position: 0.9)
    machine = Machine(cheap)
    runner = FakeRunner(num_blocks=1024, vocab_size=VOCAB_SIZE, before_forward=machine._advance)
    core = EngineCore(runner, Sampler(VOCAB_SIZE), RollingConfig(), [FunctionProposer(guesser)], clock=machine.clock)
    collector = Collector(core)
    for key, request in enumerate([plain, *asked]):
        collector.add(key, request)
    collector.run()
    drafts = [sum(output.num_draft_tokens for output in collector.outputs[key]) for key in range(3)]
    assert drafts[0] == 0
    assert min(drafts[1:]) > 40


def test_a_clock_that_stands_still_and_jumps_ends_nothing() -> None:
    """Steps that seem to take no time, or less than a change of rows usually does, once led to a division by zero."""
    for seed in (24, 32, 33, 43):
        dice = random.Random(seed)
        asked = requests(dice.randrange(1, 12))
        times = itertools.accumulate(dice.choice([0.0, 0.0, 0.001, 1.0]) for _ in itertools.count())
        config = RollingConfig(speculation=SpeculationConfig(pads_steps=True))
        guesser = FunctionProposer(Guesser(asked, lambda position: 0.8))
        runner = FakeRunner(num_blocks=2048, vocab_size=VOCAB_SIZE)
        core = EngineCore(runner, Sampler(VOCAB_SIZE), config, [guesser], clock=times.__next__)
        collector = Collector(core)
        for key, request in enumerate(asked):
            collector.add(key, request)
            if dice.random() < 0.5:
                collector.step()
        collector.run()


def in_a_bad_moment(
    seconds: RowSeconds, concerns: Callable[[int], bool], num_steps: int
) -> tuple[RowSeconds, list[int]]:
    """A machine whose first steps of the rows that it concerns take eight times as long; and the rows of all its steps."""
    steps: list[int] = []

    def of_now(num_rows: int) -> float:
        steps.append(num_rows)
        is_bad = len(steps) < num_steps and concerns(num_rows)
        return seconds(num_rows) * (8 if is_bad else 1)

    return of_now, steps


TO_ONE, TO_EIGHT = [10] * 15 + [300], [20] * 40 + [200] * 8
DRAINS = [
    (share, pads, lengths)
    for share, pads in ((0.05, True), (0.1, False), (0.5, True))
    for lengths in (TO_ONE, TO_EIGHT)
]


@pytest.mark.parametrize(("share", "pads", "lengths"), width(DRAINS, [(0.1, False, TO_ONE), (0.5, True, TO_ONE)]))
def test_a_batch_that_drains_does_not_stay_as_wide_as_it_was(share: float, pads: bool, lengths: list[int]) -> None:
    """Fewer rows than had ever been measured were taken to cost as much, so that nobody tried them."""
    asked = [
        make_request([1, 2, 3 + number], count, name=f"r{number}", seed=number, temperature=1.0, ignore_eos=True)
        for number, count in enumerate(lengths)
    ]
    plain_s, _ = Machine(usual, 0.25).run(asked, None)
    stream = random.Random(2)
    guesser = Guesser(asked, lambda position: 0.9)
    auto_s, _ = Machine(usual, 0.25, pads=pads).run(
        asked, lambda wish: guesser(wish) if stream.random() < share else []
    )
    assert plain_s / auto_s > 0.9, "what new numbers of rows take must be learned"


def test_a_request_that_waits_for_a_place_changes_nothing_of_how_guesses_pay() -> None:
    """As long as anybody waited, guesses went by the price of a prompt's tokens, and looking for them seemed not to pay."""
    speedups = []
    for count in (8, 16):  # of twice as many half wait for the others
        asked = requests(count, 120)
        plain_s, _ = Machine(cheap, max_num_seqs=8).run(asked, None)
        machine, guesser = Machine(cheap, max_num_seqs=8), Guesser(asked, lambda position: 0.9)

        def guess(wish: Wish, machine: Machine = machine, guesser: Guesser = guesser) -> Sequence[int]:
            machine.now += 0.02  # looking takes its time
            return guesser(wish)

        auto_s, _ = machine.run(asked, guess)
        speedups.append(plain_s / auto_s)
    assert speedups[1] > 0.95 * speedups[0], speedups


def test_beside_prompts_guesses_have_to_be_worth_a_row_of_decoding() -> None:
    """They were held against a prompt's token, which takes a fraction of a row that has logits to sample from."""

    def seconds(num_rows: int) -> float:
        return 1.0 + 0.1 * num_rows

    seconds_taken = []
    for share in (None, 0.4):
        asked = requests(8, 150)
        machine = Machine(seconds)
        runner = FakeRunner(
            num_blocks=1024, vocab_size=VOCAB_SIZE, max_model_len=2_000, before_forward=machine._advance
        )
        proposers = [] if share is None else [FunctionProposer(Guesser(asked, lambda position: 0.4))]
        config = RollingConfig(max_batch_tokens=128)
        core = EngineCore(runner, Sampler(VOCAB_SIZE), config, proposers, clock=machine.clock)
        collector = Collector(core)
        for key, request in enumerate(asked):
            collector.add(key, request)
        for _ in range(20):
            collector.step()
        for number in range(12):
            prompt = [1 + (number * place + place) % 20 for place in range(1_500)]
            collector.add(len(asked) + number, make_request(prompt, 1, name=f"p{number}"))
        collector.run()
        seconds_taken.append(machine.now)
    assert seconds_taken[1] < 1.03 * seconds_taken[0]


def test_guesses_that_paid_only_because_plain_steps_were_slow_for_a_moment_are_given_up() -> None:
    """Plain steps were never taken again once guesses were verified in every step, so nobody saw that they were quick."""
    asked = requests(1, 600)
    seconds, steps = in_a_bad_moment(dear, lambda num_rows: num_rows == 1, 40)
    guesser = Guesser(asked, lambda position: 0.9)
    Machine(seconds, pads=True).run(asked, lambda wish: guesser(wish)[:2])
    assert steps[20:40].count(3) > 15, "while plain steps are slow, guesses pay"
    assert steps[-100:].count(1) > 95


@settings(max_examples=examples(8))
@given(
    count=st.sampled_from([1, 3, 8]),
    base=st.floats(0.005, 0.5),
    change_s=st.sampled_from([0.0, 0.2]),
    pads=st.booleans(),
    shares=st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.6, 0.9, 1.0]), min_size=1, max_size=4),
)
def test_it_is_never_slower_than_without_whatever_texts_and_machines_are_like(
    count: int, base: float, change_s: float, pads: bool, shares: list[float]
) -> None:
    """A row costs `base` of a step; the text changes its nature every hundred tokens."""
    speedup, _ = compared(
        count,
        lambda num_rows: 1.0 + base * num_rows,
        lambda position: shares[position // 100 % len(shares)],
        change_s=change_s,
        max_tokens=400,
        pads=pads,
    )
    assert speedup > 0.95
