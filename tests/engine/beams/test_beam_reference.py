"""Beam search chooses the sequences, with the scores, that the recorded reference implementation chose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.engine.beams import BeamCandidates, BeamSearch, num_candidates
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.models import ModelOptions, load_model
from dragoman.types import FinishReason, SamplingParams
from tests.support.forward import forward_batch
from tests.support.random_checkpoint import BEAMS, write_checkpoint

REFERENCE = json.loads((Path(__file__).parent / "reference" / "beams.json").read_text())
END_IDS = frozenset(REFERENCE["eos_token_ids"])


def case_name(case: dict[str, Any]) -> str:
    names = ("num_beams", "num_beam_groups", "diversity_penalty", "length_penalty", "early_stopping")
    return "-".join(f"{name[:9]}={case[name]}" for name in names if name in case)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> OpenVinoRunner:
    directory = write_checkpoint(BEAMS, tmp_path_factory.mktemp("beams"))
    return OpenVinoRunner(load_model(directory, ModelOptions(weight_type="f32")), num_blocks=64)


def best_next(runner: OpenVinoRunner, token_ids: list[int], count: int) -> BeamCandidates:
    """Candidates after a sequence, computed from scratch."""
    batch = forward_batch([(token_ids, 0, range(4))], logit_rows=[len(token_ids) - 1])
    logits = runner.forward(batch)[0].astype(np.float64)
    logprobs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    best = np.argsort(-logprobs, kind="stable")[:count]
    return BeamCandidates(best, logprobs[best].astype(np.float32))


def params_of(case: dict[str, Any]) -> SamplingParams:
    return SamplingParams(
        temperature=1.0,
        n=case["n"],
        num_beams=case["num_beams"],
        num_beam_groups=case.get("num_beam_groups", 1),
        diversity_penalty=case.get("diversity_penalty", 0.0),
        length_penalty=case["length_penalty"],
        early_stopping=case.get("early_stopping", False),
    )


@pytest.mark.parametrize("case", REFERENCE["cases"], ids=case_name)
def test_sequences_and_scores_equal_the_reference(case: dict[str, Any], runner: OpenVinoRunner) -> None:
    params = params_of(case)
    count = num_candidates(params, len(END_IDS))
    search = BeamSearch(params, len(END_IDS), REFERENCE["max_new_tokens"])
    beams: dict[int, list[int]] = {0: []}
    finished: dict[int, list[int]] = {}

    def end_reason(_parent: int, token_id: int) -> FinishReason | None:
        return FinishReason.EOS if token_id in END_IDS else None

    while not search.is_finished:
        candidates: list[BeamCandidates | None] = [None] * params.num_beams
        for slot, generated in beams.items():
            candidates[slot] = best_next(runner, case["prompt"] + generated, count)
        step = search.advance(candidates, end_reason)
        for hypothesis in step.hypotheses:
            # the reference writes the first end-of-sequence token, whichever one it was
            tail = hypothesis.token_id if hypothesis.reason is FinishReason.LENGTH else min(END_IDS)
            finished[hypothesis.number] = [*beams[hypothesis.parent], tail]
        beams = {slot: [*beams[best.parent], best.token_id] for slot, best in step.continuations.items()}
    best = search.ranking[: case["n"]]
    assert [score for score, _ in best] == pytest.approx(case["scores"], abs=2e-4)
    assert [finished[number] for _, number in best] == case["sequences"]
