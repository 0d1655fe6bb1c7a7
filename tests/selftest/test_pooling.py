"""The self-test of models that embed or score texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dragoman.cli import main
from dragoman.tools.selftest.pooling import distance_check, speed_check
from tests.support.pooling_checkpoint import write_pooling_case


@pytest.mark.parametrize("case", ["bert_mean", "bert_reranker"])
def test_the_command_tests_a_model_that_embeds_or_scores(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "dragoman.tools.selftest.pooling.speed_check", lambda *_: speed_check(1, 1.0, 1.0)
    )  # luck otherwise
    directory = write_pooling_case(case, tmp_path)
    main(["selftest", str(directory), "--dtype", "bf16", "--json"])
    verdicts = {check["name"]: check["verdict"] for check in json.loads(capsys.readouterr().out)["checks"]}
    assert verdicts.pop("stored weights as f32") != "skipped"
    assert set(verdicts.values()) == {"ok"}


def test_what_is_far_or_no_number_is_off() -> None:
    for found, verdict in ((0.0, "ok"), (0.5, "off"), (float("nan"), "off")):
        assert distance_check("x", found, 0.1).verdict == verdict
    assert speed_check(10, 1.0, 2.0).verdict == "off"
