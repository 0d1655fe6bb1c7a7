"""The generated page and help: complete, and the committed page is the generated one."""

from __future__ import annotations

import re
from pathlib import Path

from dragoman.config.docs import HELP_WIDTH, options_help, options_page
from dragoman.config.engine_options import OPTIONS
from dragoman.config.foreign import FOREIGN_OPTIONS, REASONS
from dragoman.config.option import Option
from tests.support.tables import table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "options.md"


def test_the_committed_page_is_the_generated_one() -> None:
    assert PAGE.read_text(encoding="utf-8") == options_page(), "run `make docs`"


@table("option", OPTIONS, ids=lambda option: option.name)
def test_page_and_help_have_every_option(option: Option) -> None:
    page = options_page()
    assert option.variable in page
    assert option.row.help in page
    assert option.default_text, "an option whose default is None says what that means"
    if option.flag:
        assert f"### {option.flag}\n" in page
        assert f"  {option.flag}" in options_help()
    if option.key:
        assert f"`{option.key}`" in page
    for alias in (*option.row.keys, *option.row.env):
        assert f"`{alias.name}`" in page


def test_an_option_takes_the_zero_that_its_help_explains() -> None:
    explained = [option for option in OPTIONS if re.search(r"(?<![\d.,])0( =| [a-z]+s\b|:)|With 0,", option.row.help)]
    assert len(explained) >= 10
    for option in explained:
        assert option.row.kind.parse("0") == 0, option.name


def test_the_page_explains_options_of_other_servers() -> None:
    rows = [line for line in options_page().splitlines() if line.startswith("| ")]
    for one in FOREIGN_OPTIONS:
        assert any(row.startswith(f"| {one.reason} | ") and f"`{one.key}`" in row for row in rows), one.key
        assert one.reason in REASONS.values() or " " in one.reason, f"{one.key}: {one.reason} is no reason of the file"


def test_help_fits_a_terminal() -> None:
    assert max(len(line) for line in options_help().splitlines()) <= HELP_WIDTH


def test_each_name_is_of_one_option_except_an_address() -> None:
    names = [name for option in OPTIONS for name in (option.key, *(alias.name for alias in option.row.keys)) if name]
    names += [one.key for one in FOREIGN_OPTIONS]
    assert {name for name in names if names.count(name) > 1} == {"inference_address"}
