"""The oracle with pictures, on real kernels: whatever the batch looks like, a request's tokens are those that it gets alone.

One small model of each kind of seeing: pictures whose tokens see each other (with windows), three positions, levels that are
added behind the first layers, plain ones. All in f32, where the order of sums is all that a batch can change.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dragoman.engine.rolling.config import RollingConfig
from dragoman.engine.rolling.core import EngineCore
from dragoman.engine.rolling.forward.openvino_runner import OpenVinoRunner
from dragoman.engine.rolling.pictures import EmbeddedPicture, PromptPictures
from dragoman.engine.rolling.sample.sampler import Sampler
from dragoman.engine.rolling.sequence import AddRequest
from dragoman.engine.rolling.stored_prefixes.store import Storage, StoredModel
from dragoman.models import LoadedModel, ModelOptions, load_model
from dragoman.models.vision.tower import Tower
from dragoman.prefix_store import BlockStore
from dragoman.types import EngineRequest, PictureSpan
from tests.engine.naive import Collector, make_request
from tests.support.live_parts import criterion_of, masker_of
from tests.support.tiers import width
from tests.support.vision_checkpoint import prompt_pieces, token_ids
from tests.support.vision_model import SeeingModel, embedded

MODELS = {
    "bidirectional": "gemma3",
    "three positions": "qwen2_vl",
    "levels": "qwen3_vl",
    "plain": "idefics3_whole",
    "convolutions": "lfm2_vl",
}
NUM_IDS = 300
KINDS: Sequence[dict[str, float | int]] = (
    {},
    {"temperature": 0.9, "top_p": 0.95},
    {"temperature": 1.0, "n": 3},
    {"num_beams": 3, "n": 2, "best_of": 3},
)
# Numbers are words; requests of one kind begin alike, but for the picture in the sixth.
PROMPTS: Sequence[Sequence[int | str]] = (
    (5, "grey", 3, "odd", 9),
    (40,),
    (20, "odd", 40, "small", 20),
    ("exact", "exact", 2),
    (20, "odd", 40, "exact", 30),
    (20, "small", 40, "small", 20),
    (70, "grey", 30, "odd", 1),
    (40, "grey", 1, "wide"),
)
RECORDED = len(PROMPTS)  # the request behind those for these prompts


class Seeing:
    """A model that is loaded, and the requests for it."""

    def __init__(self, case: SeeingModel, loaded: LoadedModel) -> None:
        self.case = case
        self.loaded = loaded
        assert loaded.tower is not None
        self.tower: Tower = loaded.tower
        self.words = np.random.RandomState(8).randint(1, NUM_IDS, 200).tolist()
        self.requests = [*(self._request(number) for number in range(len(PROMPTS))), self._recorded_request()]
        self.alone: dict[int, list[list[int]]] = {}

    def _request(self, number: int) -> EngineRequest:
        ids: list[int] = []
        spans: list[PictureSpan] = []
        for piece in PROMPTS[number]:
            if isinstance(piece, int):
                ids += self.words[len(ids) : len(ids) + piece]
                continue
            self._show(piece, ids, spans)
        request = make_request(ids, 40, seed=number, name=f"r{number}", ignore_eos=True, **KINDS[number % 4])
        return msgspec.structs.replace(request, pictures=tuple(spans))

    def _recorded_request(self) -> EngineRequest:
        """For the first prompt of the recorded case, with all log-probabilities."""
        ids: list[int] = []
        spans: list[PictureSpan] = []
        for kind, piece in prompt_pieces(self.case.name, self.case.case, 0):
            if kind == "picture":
                self._show(piece, ids, spans)
            else:
                ids += token_ids(self.case.case, piece)
        request = make_request(ids, 8, name="recorded", ignore_eos=True, logprobs=0, prompt_logprobs=0)
        return msgspec.structs.replace(request, pictures=tuple(spans))

    def _show(self, name: str, ids: list[int], spans: list[PictureSpan]) -> None:
        """Append a picture's tokens and where they are."""
        picture_ids = self.case.picture_ids(name)
        places = [i for i, token in enumerate(picture_ids) if token == self.tower.facts.placeholder_id]
        length = places[-1] - places[0] + 1
        spans.append(PictureSpan(self.case.picture(name), len(ids) + places[0], length))
        ids += picture_ids

    def answers(
        self, keys: Sequence[int], config: RollingConfig, num_blocks: int, directory: Path | None = None
    ) -> tuple[dict[int, list[list[int]]], Collector]:
        """The tokens of every sequence of these requests, computed together; behind what is on disk, in that directory."""
        runner = OpenVinoRunner(self.loaded, num_blocks)
        storage = None
        if directory is not None:
            storage = Storage(BlockStore.open(directory, 1 << 28), runner, StoredModel(self.case.name))
        core = EngineCore(runner, Sampler(runner.vocab_size), config, storage=storage)
        collector = Collector(core)
        for key in keys:
            request = self.requests[key]
            shown = [
                EmbeddedPicture(embedded(self.tower, s.picture, s.detail), self.tower.grid(s.picture, s.detail))
                for s in request.pictures
            ]
            pictures = PromptPictures(request, shown, self.tower.facts) if shown else None
            core.inbox.put(AddRequest(key, request, masker_of(request), criterion_of(request), pictures))
        collector.run()
        while core.is_reading:
            core.inbox.wait(core.has_work)
            collector.run()
        assert not collector.errors
        core.close()
        runner.close()
        found = {
            key: [list(collector.sequence(key, i).token_ids) for i in range(self.requests[key].sampling.n)]
            for key in keys
        }
        return found, collector


@pytest.fixture(scope="module", params=width(list(MODELS), ["bidirectional", "levels"]))
def seeing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    directory = tmp_path_factory.mktemp("model")
    case = SeeingModel(MODELS[request.param], directory, ModelOptions(weight_type="f32"))
    seen = Seeing(case, load_model(directory, ModelOptions(weight_type="f32")))
    config = RollingConfig(max_batch_tokens=1024, prefix_cache="off")
    for key in range(len(PROMPTS)):
        seen.alone |= seen.answers([key], config, 128)[0]
    return seen


COMPANIES = [(1024, 256, "prompt"), (80, 16, "all"), (96, 16, "off")]


@pytest.mark.varies("sums are of other kernels on other processors")
@pytest.mark.parametrize(("max_batch_tokens", "num_blocks", "prefix_cache"), width(COMPANIES, [(80, 16, "all")]))
def test_together_every_request_gets_the_tokens_that_it_gets_alone(
    seeing: Seeing, max_batch_tokens: int, num_blocks: int, prefix_cache: str
) -> None:
    config = RollingConfig(max_batch_tokens, max_num_seqs=8, prefix_cache=prefix_cache, assumed_output_tokens=1)  # type: ignore[arg-type]
    together, collector = seeing.answers(range(len(PROMPTS)), config, num_blocks)
    assert together == seeing.alone
    assert collector.core.stats.num_preemptions or num_blocks > 200
    answers = {tuple(tokens) for answer in seeing.alone.values() for tokens in answer}
    assert len(answers) > len(PROMPTS), "prompts decide"


def test_a_prefix_is_reused_up_to_the_first_picture_that_differs(seeing: Seeing) -> None:
    config = RollingConfig(max_batch_tokens=1024, max_num_seqs=1)
    for second, is_shared in ((4, True), (5, False)):
        found, collector = seeing.answers([2, second], config, 256)
        num_alike = seeing.requests[2].pictures[1].begin if is_shared else 0  # placeholders are alike, pictures are not
        assert collector.outputs[second][0].num_cached_tokens == num_alike // 32 * 32
        assert found[second] == seeing.alone[second]


def test_a_prefix_comes_from_disk_up_to_the_first_picture_that_differs(seeing: Seeing, tmp_path: Path) -> None:
    config = RollingConfig(max_batch_tokens=1024, max_num_seqs=1)
    seeing.answers([2], config, 256, tmp_path / "store")
    for key, is_shared in ((2, True), (4, True), (5, False)):
        found, collector = seeing.answers([key], config, 256, tmp_path / "store")
        num_stored = collector.outputs[key][0].num_stored_tokens
        assert found[key] == seeing.alone[key]
        least = seeing.requests[2].pictures[1].begin // 32 * 32 if key == 4 else 32
        assert num_stored >= least if is_shared else num_stored == 0


@pytest.mark.parametrize("max_batch_tokens", width([1024, 80], [80]))
def test_log_probabilities_are_those_of_the_whole_text_computed_at_once(seeing: Seeing, max_batch_tokens: int) -> None:
    """Of the prompt's tokens, placeholders among them, and of the answer's: from logits that no engine has scheduled."""
    config = RollingConfig(max_batch_tokens, max_num_seqs=8)
    found, collector = seeing.answers([0, 4, RECORDED, 6], config, 256)
    told = collector.outputs[RECORDED][0].prompt_logprobs
    assert told is not None
    assert told[0] is None
    logprobs = [each.logprob for each in told if each is not None] + collector.sequence(RECORDED).logprobs

    tokens = found[RECORDED][0]
    ids = [*seeing.requests[RECORDED].prompt_ids, *tokens]
    known = seeing.case.positions(0)
    positions = np.concatenate([known, known[:, -1:] + np.arange(1, len(tokens) + 1)], axis=1) if known.size else known
    logits = seeing.case.logits(ids, seeing.case.prompt_pictures(0), positions)[:-1].astype(np.float64)
    totals = np.logaddexp.reduce(logits, axis=1)
    expected = logits[np.arange(len(logits)), ids[1:]] - totals
    assert len(logprobs) == len(ids) - 1
    assert np.abs(logprobs - expected).max() < 1e-4
    assert ids.count(seeing.tower.facts.placeholder_id) > 10
