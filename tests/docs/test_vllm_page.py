"""docs/vllm.md says which versions of vLLM this package goes with, as its metadata do."""

from __future__ import annotations

import re
import tomllib

from packaging.requirements import Requirement

from tests.support.documented import ROOT

PAGE = (ROOT / "docs" / "vllm.md").read_text(encoding="utf-8")


def test_no_version_is_installed_but_those_that_the_page_says_were_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (line,) = project["optional-dependencies"]["vllm"]
    assert f"`{line}`" in PAGE
    (tested,) = re.findall(r"tested with vLLM (\d+\.\d+)", PAGE)
    major, minor = map(int, tested.split("."))
    others = (f"{major}.{minor - 1}.9", f"{major}.{minor + 1}.0", f"{major + 1}.0.0")
    allowed = Requirement(line).specifier
    assert list(allowed.filter([f"{tested}.0", f"{tested}.9", *others])) == [f"{tested}.0", f"{tested}.9"]
