"""docs/scaling.md says what the code says: capabilities, bytes of the cache, costs, hit rates, the command's options."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from benchmarks.shapes import SHAPES
from dragoman.cli.plan import COMMAND
from dragoman.cli.subcommand import ReadWords
from dragoman.config.resolve import demo_model_dir
from dragoman.engine.base import Capabilities
from dragoman.engine.factory import EngineSetup
from dragoman.engine.remote.profile import KINDS, Kind, Profile, common
from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.engine import RollingEngine
from dragoman.engine.rolling.needs import block_bytes
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.vllm.factory import capabilities_of
from dragoman.models.families import read_model
from dragoman.models.profile import BLOCK_SIZE
from dragoman.tools.plan.costs import StepCosts
from dragoman.tools.plan.router import ROUTERS
from dragoman.tools.plan.workload import Workload
from dragoman.types import Grammar
from tests.engine.fake_runner import FakeRunner
from tests.plan.hit_rates import best_hit_rate
from tests.support.differences import lacking
from tests.support.letters import VOCAB_SIZE, letter_tools
from tests.support.tables import table

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "scaling.md").read_text(encoding="utf-8")

SHAPE_OF = {
    "Qwen2.5 0.5B": SHAPES["qwen2.5-0.5b"],
    "Qwen3 0.6B": SHAPES["qwen3-0.6b"],
    "Llama 3.2 1B": SHAPES["llama-3.2-1b"],
    "Gemma 3 1B": SHAPES["gemma-3-1b"],
    "Llama 3.1 8B": {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
    },
}


def rows_after(heading: str) -> list[list[str]]:
    """The cells of the first table behind a heading, without its own head."""
    section = PAGE.split(heading, 1)[1]
    lines = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert lines is not None
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines.group().splitlines()[2:]]


def number(cell: str) -> int:
    return int(cell.replace(",", ""))


def test_the_table_of_capabilities_has_all_of_them_as_the_engine_tells_them() -> None:
    told = {name.strip("`"): cell for name, _, cell, *_ in rows_after("## What each engine can do")}
    assert list(told) == [field.name for field in fields(Capabilities)]
    engine = RollingEngine(FakeRunner(vocab_size=VOCAB_SIZE), Sampler(VOCAB_SIZE), RollingConfig(), (), letter_tools())
    for name, cell in told.items():
        value = getattr(engine.capabilities, name)
        assert (cell == "yes") == (value is True), name
    assert number(told["max_logprobs"]) == engine.capabilities.max_logprobs


SWITCHES = [field.name for field in fields(Capabilities) if field.type == "bool"]


def cells_of(engine: str) -> dict[str, str]:
    """What the table of capabilities says of an engine, by capability."""
    place = ["rolling", "vLLM", "remote"].index(engine) + 2
    return {row[0].strip("`"): row[place] for row in rows_after("## What each engine can do")}


def on_vllm(*, sees: bool = False, ends_reasoning: bool = False, **options: Any) -> Capabilities:
    """Of a model on vLLM."""
    model = SimpleNamespace(max_model_len=77, get_vocab_size=lambda: VOCAB_SIZE)
    tools = replace(letter_tools(), lark_of=lambda _grammar, _end_ids: "")
    return capabilities_of(
        model, EngineSetup(demo_model_dir(), options), tools, sees=sees, ends_reasoning=ends_reasoning
    )


def test_the_table_of_capabilities_says_what_vllm_can_do() -> None:
    told, able = cells_of("vLLM"), [on_vllm(), on_vllm(sees=True), on_vllm(ends_reasoning=True)]
    blind = able[0]
    for name in SWITCHES:
        values = [getattr(one, name) for one in able]
        assert told[name].startswith("yes") == all(values), name
        assert told[name].startswith("no") == (not any(values)), name
    assert told["max_logprobs"] == f"`option.max_logprobs`, {blind.max_logprobs}"
    assert on_vllm(max_logprobs=5).max_logprobs == 5
    assert told["grammar_kinds"].startswith("all") == (blind.grammar_kinds is None)
    speculation = {"num_assistant_tokens", "assistant_confidence_threshold", "max_ngram_size"}
    named = set(re.findall(r"`(\w+)`", told["unsupported"]))
    assert named | speculation == blind.unsupported
    assert "the parameters of speculation" in told["unsupported"]


def behind(kind: Kind, *, tells: bool = True) -> Capabilities:
    """Of the remote engine before a server that does all that its kind may. `tells`: log-probabilities."""
    grammars = kind.grammars[0] if kind.grammars else {}
    profile = Profile(
        "model", kind, takes_ids=True, gives_ids=True, max_logprobs=5 if tells else None,
        prompt_logprobs=kind.prompt_logprobs, cache_salt=kind.cache_salt, priority=kind.priority, names=kind.names,
        grammars=grammars, adapters=("sql",),
    )  # fmt: skip
    return common((profile,), 77, VOCAB_SIZE).capabilities


@table("name", SWITCHES)
def test_the_table_of_capabilities_says_which_servers_behind_can_do_it(name: str) -> None:
    cell, every = cells_of("remote")[name], {kind.name for kind in KINDS}
    able = {kind.name for kind in KINDS if getattr(behind(kind), name)}
    able_untold = {kind.name for kind in KINDS if getattr(behind(kind, tells=False), name)}
    match cell.split(":")[0]:
        case "yes":
            assert able == able_untold == every
        case "no" | "with several servers":
            assert not able
        case "where log-probabilities are told":
            assert (able, able_untold) == (every, set())
        case "what the servers were seen to follow":
            assert able == {kind.name for kind in KINDS if kind.grammars}
        case "dragoman, vLLM, emulated":  # of others it depends on whether they take and tell token ids
            assert {"dragoman", "vLLM"} <= able < every
            assert not able_untold
        case _:
            assert set(cell.split(", ")) == able


def test_the_table_of_capabilities_says_what_is_the_servers_to_tell() -> None:
    told = cells_of("remote")
    assert told["max_logprobs"] == "what the servers tell"
    assert told["grammar_kinds"].endswith("never in frames")
    assert told["adapters"] == "those that some server lists with the model"
    for kind in KINDS:
        found = behind(kind)
        assert found.max_logprobs == 5
        assert found.adapters == ("sql",)
        assert not found.can_follow(Grammar("json_schema", "{}", frame="start: @output"))


def test_each_difference_that_clients_notice_is_shown_by_a_test_and_no_test_needs_another() -> None:
    suites = (Path(__file__).resolve().parents[1] / "e2e").glob("test_*.py")
    marks = [mark for suite in suites for mark in re.findall(r"mark\.needs\(([^)]*)\)", suite.read_text("utf-8"))]
    needed = {name for mark in marks for name in re.findall(r'"([^"]*)"', mark)}
    table = lacking()
    assert needed == table.keys()
    assert [name for name, engines in table.items() if not engines or "rolling" in engines] == []
    assert {engine for engines in table.values() for engine in engines} == {"vllm", "remote"}


@pytest.mark.parametrize("row", rows_after("## The cache of a token"), ids=lambda row: row[0])
def test_the_bytes_of_a_token_are_those_of_the_engine(row: list[str]) -> None:
    facts = read_model({"max_position_embeddings": 8192, **SHAPE_OF[row[0]]}).facts
    every = [attention for attention in facts.attention_layers.values() if not attention.window]
    assert [number(cell) for cell in row[1:4]] == [len(every), every[0].num_kv_heads, every[0].head_size]
    for cell, cache_type in zip(row[4:6], ("bf16", "u8"), strict=True):
        assert number(cell) * BLOCK_SIZE == block_bytes(facts, cache_type)[0]
    windows = [attention.window for attention in facts.attention_layers.values() if attention.window]
    if windows:
        total = block_bytes(facts, "bf16")[1] / BLOCK_SIZE * windows[0] / 2**20
        assert row[6] == f"{len(windows)} layers of {windows[0]} tokens: {total:.1f} MiB"


def test_the_hit_rates_are_those_of_the_formula() -> None:
    for prefixes, router, *cells in rows_after("## A thousand replicas"):
        kind = ROUTERS[ROUTERS.index(router)]
        asked = Workload(1.0, 1200, 150, prefix_tokens=1000, num_prefixes=number(prefixes))
        rates = [best_hit_rate(asked, count, kind, 131_072) for count in (1, 10, 100, 1000)]
        assert cells == [f"{rate:.0%}".replace("%", " %") for rate in rates]


def test_the_made_up_costs_are_costs() -> None:
    (text,) = re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert msgspec.json.decode(text, type=StepCosts).tokens[-1] == (512, 0.4)


@pytest.mark.parametrize("command", re.findall(r"^dragoman plan MODEL (.*)$", PAGE, re.MULTILINE))
def test_the_commands_are_understood(command: str) -> None:
    words = ReadWords(COMMAND.options, command.split())
    assert COMMAND.read(words) is not None
    assert words.problems == words.others == []
