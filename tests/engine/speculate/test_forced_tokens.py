"""Text that grammars force is proposed, and answers are those of plain decoding."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from dragoman.engine.rolling.config import RollingConfig, SpeculationConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sequence import AddRequest, SequenceGroup
from dragoman.engine.rolling.speculate.proposer import NOTHING, Basis, ForcedTokensProposer, Proposal, Wish, evidence
from dragoman.grammar.compiler import GrammarCompiler
from dragoman.grammar.masker import Vocabulary
from dragoman.tokenizer.answer_watch import AnswerWatch
from dragoman.tokenizer.base import TokenPieces
from dragoman.types import EngineRequest, Foreseen, Grammar, Thinking, TokenMasker
from tests.engine.fake_runner import FakeRunner
from tests.engine.naive import Collector, make_request, naive_sequence
from tests.engine.proposers import NoSumOfThree
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.live_parts import with_masker

pytest.importorskip("llguidance")

PIECES = [b'{"', b'":', b' "', b"true", b" true", b"name", b"na", b"12", b"re", b"},", b'"}', b'",']
EOS, TOOL = 0, 256 + len(PIECES)  # the byte 0 is no part of any text
TOKENS = [b"<eos>", *(bytes([byte]) for byte in range(1, 256)), *PIECES, b"<tool>"]
VOCAB_SIZE = len(TOKENS)
COMPILER = GrammarCompiler(Vocabulary(TOKENS, frozenset({EOS, TOOL}), EOS))

INNER, OPEN = evidence(Basis.GRAMMAR, 1), evidence(Basis.GRAMMAR, 0)
FORCED = evidence(Basis.FORCED)
CALL = Grammar("lark", 'start: <tool> /(name|none)/ <tool> "-"')
FLAT = Grammar(
    "json_schema",
    json.dumps(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 3},
                "kind": {"enum": ["red", "reed", "green"]},
                "list": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
                "const": {"const": "one of a kind"},
            },
            "required": ["name", "kind", "list", "const"],
            "additionalProperties": False,
        }
    ),
)


def proposal_of(masker: TokenMasker, max_tokens: int = 8, generated: Sequence[int] = (), **request: Any) -> Proposal:
    """What is proposed for a sequence with this grammar."""
    bad_words = request.pop("bad_words", ())
    made = make_request([1, 2], **request)
    made = EngineRequest(
        "r", made.prompt_ids, made.sampling, 20, 1, eos_token_ids=made.eos_token_ids, bad_word_ids=bad_words
    )
    group = SequenceGroup(AddRequest(0, made, masker), 0, Sampler(VOCAB_SIZE))
    sequence = group.sequences[0]
    for token_id in generated:
        sequence.token_ids.append(token_id)
        sequence.sampler_state.observe(token_id)
    [proposal] = ForcedTokensProposer().propose([Wish(sequence, max_tokens)])
    return proposal


def test_the_usual_tokens_of_a_forced_text_are_proposed() -> None:
    proposal = proposal_of(COMPILER.compile(FLAT))
    assert [TOKENS[token_id] for token_id in proposal.token_ids] == [b'{"', b"name", b'":', b' "']
    assert list(proposal.evidence) == [INNER] * 4
    assert len(proposal_of(COMPILER.compile(FLAT), max_tokens=2).token_ids) == 2


def test_a_last_token_that_may_be_longer_is_told_from_the_others() -> None:
    masker = COMPILER.compile(Grammar("regex", "nan(ame|b)"))
    proposal = proposal_of(masker)
    assert [TOKENS[token_id] for token_id in proposal.token_ids] == [b"na", b"n"]
    assert list(proposal.evidence) == [INNER, OPEN]


@pytest.mark.parametrize(
    ("request_options", "expected"),
    [
        ({}, FORCED),
        ({"min_tokens": 1}, INNER),
        ({"allowed_token_ids": [1, 2, TOOL]}, INNER),
        ({"bad_words": ((7, 8),)}, INNER),
        ({"repetition_penalty": 2.0}, FORCED),
    ],
)
def test_a_token_is_sure_only_if_no_other_mask_may_ban_it(request_options: dict[str, Any], expected: int) -> None:
    proposal = proposal_of(COMPILER.compile(CALL), **request_options)
    assert proposal.token_ids[0] == TOOL
    assert proposal.evidence[0] == expected


def test_nothing_is_proposed_where_text_is_free_or_behind_the_end() -> None:
    assert proposal_of(COMPILER.compile(Grammar("regex", "[a-z]+"))) == NOTHING
    assert proposal_of(COMPILER.compile(Grammar("regex", "x")), generated=[ord("x")]) == NOTHING


def test_the_end_of_reasoning_is_proposed_as_it_comes_whatever_a_grammar_says() -> None:
    thinking = Thinking("<t>", ("</t>",), tuple(range(40, 50)), is_open=True, budget=2)
    made = msgspec.structs.replace(make_request([1, 2]), thinking=thinking)
    watch = AnswerWatch(TokenPieces(ByteTokenizer()), thinking)
    command = AddRequest(0, made, COMPILER.compile(Grammar("regex", "[a-z]+")), watch=watch)
    sequence = SequenceGroup(command, 0, Sampler(VOCAB_SIZE)).sequences[0]
    proposed = []
    for token_id in (97, 98, 40):
        proposed += ForcedTokensProposer().propose([Wish(sequence, 4)])
        sequence.token_ids.append(token_id)
        sequence.sampler_state.observe(token_id)
    proposed += ForcedTokensProposer().propose([Wish(sequence, 4)])
    assert proposed[:2] == [NOTHING, NOTHING]
    assert [list(one.token_ids) for one in proposed[2:]] == [[40, 41, 42, 43], [41, 42, 43, 44]]
    assert {kind for one in proposed[2:] for kind in one.evidence} == {FORCED}


def test_a_grammar_that_breaks_is_left_to_sampling() -> None:
    class Broken(NoSumOfThree):
        def fork(self) -> Broken:
            return self

        def foresee(self, limit: int) -> Foreseen:
            raise RuntimeError("grammar state lost")

    assert proposal_of(Broken()) == NOTHING


OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 1.5, "n": 3},
    {"temperature": 1.0, "top_p": 0.9, "logprobs": 2},
    {"frequency_penalty": 1.0, "repetition_penalty": 1.3},
    {"min_tokens": 60, "temperature": 1.0},
    {"allowed_token_ids": [*range(128)], "temperature": 1.0},
]


@pytest.mark.parametrize(
    "grammar", [FLAT, CALL, Grammar("regex", "(name|na)-12{3}(true|x)*re"), Grammar("json_object")]
)
def test_answers_are_those_of_plain_decoding(grammar: Grammar) -> None:
    requests = [
        with_masker(make_request([3, 4, 5], 40, seed=seed, **options), COMPILER.compile(grammar))
        for seed, options in enumerate(OPTIONS)
    ]
    core = EngineCore(
        FakeRunner(num_blocks=600, vocab_size=VOCAB_SIZE),
        Sampler(VOCAB_SIZE),
        RollingConfig(speculation=SpeculationConfig(num_assistant_tokens=5, max_batch=64)),
        [ForcedTokensProposer()],
    )
    collector = Collector(core)
    for key, request in enumerate(requests):
        collector.add(key, request)
    collector.run()
    core.close()
    assert not collector.errors
    assert core.stats.num_accepted_tokens > 0
    for key, request in enumerate(requests):
        for index in range(request.sampling.n):
            assert collector.sequence(key, index) == naive_sequence(request, index, VOCAB_SIZE), OPTIONS[key]
