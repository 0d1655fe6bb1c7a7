"""The benchmark of speculation: its texts, what the model that copies answers, and the shares that make a kind a kind."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from benchmarks.serving.model import BenchShape
from benchmarks.speculation.asking import Asked, Asker, Phase, Request
from benchmarks.speculation.contenders import Contender
from benchmarks.speculation.copier import write_copier
from benchmarks.speculation.copier_texts import copier_task, mind, vocabulary, write_tokenizer
from benchmarks.speculation.demo_texts import text_task
from benchmarks.speculation.mind import JSON_OPEN, JSON_PIECES
from benchmarks.speculation.report import fold, row
from benchmarks.speculation.tasks import AGENT, CHAT, EDIT, JSON, KINDS, SUMMARY, Task, Turn
from dragoman.llm import LLM
from dragoman.tools.bench.client import HttpClient
from dragoman.types import SamplingParams

SMALL = BenchShape(hidden_size=512, num_layers=2, num_heads=8, num_kv_heads=1, intermediate_size=64)


@pytest.mark.parametrize("make", [copier_task, text_task])
@pytest.mark.parametrize("kind", KINDS)
def test_a_number_makes_the_same_task_always_and_another_one_another(make: object, kind: str) -> None:
    assert callable(make)
    assert make(kind, 3) == make(kind, 3)
    assert make(kind, 3) != make(kind, 4)
    assert len(make(kind, 3).turns) == (4 if kind == AGENT else 1)


def test_turns_hold_the_turns_before_them_and_their_answers() -> None:
    for before, turn in pairwise(copier_task(AGENT, 0).turns):
        text = [*before.ids, *mind().answer(before.ids, before.max_tokens)]
        assert list(turn.ids[: len(text)]) == text
        assert len(turn.ids) > len(text)


def repeated_share(kind: str) -> float:
    """The share of the answers' tokens that stand behind the same two tokens in the text before them."""
    num_repeated = num_tokens = 0
    for number in range(4):
        turn = copier_task(kind, number).turns[-1]
        text = list(turn.ids)
        seen = {(a, b): c for a, b, c in zip(text, text[1:], text[2:], strict=False)}
        for token_id in mind().answer(turn.ids, turn.max_tokens):
            num_repeated += seen.get((text[-2], text[-1])) == token_id
            text.append(token_id)
            seen[text[-3], text[-2]] = token_id
            num_tokens += 1
    return num_repeated / num_tokens


def test_kinds_differ_in_what_their_answers_repeat() -> None:
    share = {kind: repeated_share(kind) for kind in KINDS}
    assert share[CHAT] < 0.05
    assert 0.3 < share[SUMMARY] < 0.65
    assert 0.5 < share[JSON] < 0.8
    assert 0.5 < share[AGENT] < 0.85
    assert 0.65 < share[EDIT] < 0.9


@pytest.mark.full("asks the benchmark's own model for one answer of each kind")
def test_the_model_answers_as_its_mind_says_and_its_tokens_spell_the_schema(tmp_path: Path) -> None:
    write_copier(tmp_path, SMALL, mind())
    write_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    pieces = [vocabulary().json_open, *(token_id for ids in vocabulary().json for token_id in ids)]
    text = JSON_OPEN + "".join(piece for pieces in JSON_PIECES for piece in pieces)
    assert tokenizer.encode(text).ids == pieces
    assert tokenizer.decode(pieces) == text
    turns = [copier_task(kind, 1).turns[-1] for kind in KINDS]
    with LLM(tmp_path, dtype="f32", kv_cache_gb=0.05) as llm:
        for turn in turns:
            sampling = SamplingParams(temperature=0.0, ignore_eos=True)
            (result,) = llm.generate([list(turn.ids)], sampling, max_tokens=24)
            assert [token.id for token in result.sequences[0].tokens] == mind().answer(turn.ids, 24)


class _Nobody:
    """A process that does nothing."""


def contender(name: str, seconds: list[float], answers: list[str]) -> Contender:
    phases = [Phase(one, 100, list(answers), 50, 25, [(80, one), (20, one / 2)]) for one in seconds]
    return Contender(name, _Nobody(), _Nobody(), phases={(EDIT, 4): phases})  # type: ignore[arg-type]


def test_rounds_are_folded_to_ratios_within_a_round() -> None:
    plain, quick = contender("off", [1.0, 4.0, 2.0], ["ab", "c"]), contender("auto", [0.5, 1.0, 1.0], ["ab", "d"])
    line = fold([plain, quick], (EDIT, 4), str)
    assert line["tokens_per_s"] == {"off": 50.0, "auto": 100.0}
    assert line["to_off"] == {"auto": 2.0}
    assert line["error"] == {"auto": pytest.approx(0.667, abs=1e-3)}, "the ratios are 2, 4 and 2"
    assert line["speed_to_off"] == {"auto": 2.0}
    assert line["differing"] == {"auto": 3}
    assert line["guessed_per_token"] == {"auto": 0.5}
    assert line["accepted_per_token"] == {"auto": 0.25}
    assert row(line, ["off", "auto"]).split()[:8] == ["edit", "4", "50.0", "100.0", "2.00", "0.67", "2.00", "3"]


def test_a_streams_speed_does_not_wait_for_other_streams() -> None:
    phase = Phase()
    phase.add(Phase(4.0, 100, streams=[(80, 4.0), (20, 1.0)]))
    phase.add(Phase(2.0, 60, streams=[(40, 2.0), (20, 1.0)]))
    assert phase.rate == pytest.approx(160 / 6)
    assert phase.speed == pytest.approx(120 / 6 + 40 / 2)
    assert Phase(1.0, 10).speed == 0, "it is not known of whom only the whole is"


def test_of_an_answer_that_is_not_over_counts_what_has_come() -> None:
    asked = Asked("", 30, 1.0, 4.0)
    assert [asked.tokens_until(end_s) for end_s in (0.5, 1.0, 3.0, 4.0, 9.0)] == [0.0, 0.0, 20.0, 30.0, 30.0]


class _SteadyAsker(Asker):
    """Asks nobody: stream 0 gets a token a second, stream 1 two; notes what each was asked."""

    def __init__(self) -> None:
        super().__init__("http://nowhere.invalid", "llama.cpp")
        self.asked: list[tuple[int, object]] = []
        self._now = [0.0, 0.0]

    async def _ask(self, client: HttpClient, request: Request) -> Asked:
        self.asked.append((request.stream, request.prompt))
        begin_s = self._now[request.stream]
        self._now[request.stream] += request.turn.max_tokens / (1 + request.stream)
        return Asked("!", request.turn.max_tokens, begin_s, self._now[request.stream])


def test_streams_at_their_own_pace_are_measured_until_the_first_has_ended() -> None:
    asker = _SteadyAsker()
    task = Task(AGENT, (Turn(10, text="a"), Turn(10, text="b")))
    phase = asker.converse([[task], [task]])
    assert phase.num_tokens == pytest.approx(10 + 20), "by the 10 seconds after which stream 1 has ended"
    assert sorted(asker.asked) == [(0, "a"), (0, "a!b"), (1, "a"), (1, "a!b")]
    assert phase.answers == ["!"] * 4
