"""The documentation page of the LMI dialect says what the parameter table says."""

from __future__ import annotations

from pathlib import Path

from dragoman.server.apis.lmi_wire.parameters import TABLE
from tests.dialects.lmi_page import BEGIN, END, parameter_section

PAGE = Path(__file__).resolve().parents[2] / "docs" / "dialects" / "lmi.md"


def test_the_page_holds_the_current_parameter_tables(update_golden: bool) -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    current = before + parameter_section() + after
    if update_golden:
        PAGE.write_text(current, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == current


def test_every_name_and_alias_of_the_table_is_documented() -> None:
    section = parameter_section()
    assert all(f"`{name}`" in section for row in TABLE for name in (row.name, *row.aliases))
