"""A scrape shows each engine's gauges and totals of that moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from prometheus_client import REGISTRY, Counter
from prometheus_client.parser import text_string_to_metric_families

from dragoman.engine.base import EngineStats, Health, UpstreamHealth
from dragoman.histogram import Histogram
from dragoman.server.observation.metrics import MetricsRegistry
from tests.support.openmetrics import openmetrics_families


@dataclass
class Model:
    name: str
    engine: Any = field(default=None)


def engine(num_running: int, **stats: Any) -> Any:
    health = Health(True, num_running=num_running, num_waiting=2, num_used_blocks=3, num_blocks=9)
    counted = EngineStats(**stats)
    return SimpleNamespace(health=lambda: health, stats=lambda: counted)


def samples(registry: MetricsRegistry) -> dict[tuple[str, str], float]:
    families = text_string_to_metric_families(registry.render().decode())
    return {(sample.name, sample.labels["model"]): sample.value for family in families for sample in family.samples}


def test_every_model_has_its_gauges_and_totals() -> None:
    models = [Model("a", engine(1, num_steps=5, num_generated_tokens=7)), Model("b", engine(4, num_steps=6))]
    shown = samples(MetricsRegistry(lambda: models))
    assert shown["dragoman_requests_running", "a"] == 1
    assert shown["dragoman_requests_running", "b"] == 4
    assert shown["dragoman_kv_blocks_used", "a"] == 3
    assert shown["dragoman_generation_tokens_total", "a"] == 7
    assert ("dragoman_generation_tokens_total", "b") not in shown


def test_models_that_come_later_are_shown() -> None:
    models: list[Model] = []
    registry = MetricsRegistry(lambda: models)
    assert samples(registry) == {}
    models.append(Model("late", engine(0)))
    assert samples(registry)["dragoman_requests_waiting", "late"] == 2


def test_servers_behind_an_engine_are_shown_one_by_one() -> None:
    health = Health(True, upstreams=(UpstreamHealth("http://a", True, 3), UpstreamHealth("http://b", False, 0)))
    behind = SimpleNamespace(health=lambda: health, stats=EngineStats)
    text = MetricsRegistry(lambda: [Model("far", behind), Model("near", engine(1))]).render().decode()
    assert 'dragoman_upstream_healthy{model="far",upstream="http://a"} 1.0' in text
    assert 'dragoman_upstream_healthy{model="far",upstream="http://b"} 0.0' in text
    assert 'dragoman_upstream_requests{model="far",upstream="http://a"} 3.0' in text
    assert 'model="near",upstream' not in text


def test_what_an_engines_library_counts_stands_beside_it() -> None:
    theirs = Counter("vllm:some_steps", "Counted by vLLM", ["model_name"], registry=REGISTRY)
    other = Counter("somebody_elses", "Not of an engine", registry=REGISTRY)
    try:
        theirs.labels("m").inc(3)
        other.inc()
        text = MetricsRegistry(lambda: []).render().decode()
        assert 'vllm:some_steps_total{model_name="m"} 3.0' in text
        assert "somebody_elses" not in text
    finally:
        REGISTRY.unregister(theirs)
        REGISTRY.unregister(other)


def test_openmetrics_has_the_same_numbers_and_ends() -> None:
    registry = MetricsRegistry(lambda: [Model("a", engine(1, num_steps=5))])
    text = registry.render(as_openmetrics=True).decode()
    assert text.endswith("# EOF\n")
    families = openmetrics_families(text)
    shown = {(one.name, one.labels["model"]): one.value for family in families for one in family.samples}
    assert shown == samples(registry)


def test_a_bucket_shows_the_last_trace_that_fell_into_it() -> None:
    histogram = Histogram([1.0, 2.0])
    for value, trace_id in ((0.5, "a" * 32), (0.7, "b" * 32), (0.9, ""), (3.0, "c" * 32)):
        histogram.add(value, trace_id)
    registry = MetricsRegistry(lambda: [Model("m", engine(1, step_s=histogram))])
    families = openmetrics_families(registry.render(as_openmetrics=True).decode())
    found = {
        one.labels["le"]: (one.exemplar.labels["trace_id"], one.exemplar.value)
        for family in families
        for one in family.samples
        if one.exemplar is not None
    }
    assert found == {"1.0": ("b" * 32, 0.7), "+Inf": ("c" * 32, 3.0)}
    assert "trace_id" not in registry.render().decode()


def test_merged_histograms_keep_examples() -> None:
    one, other = Histogram([1.0]), Histogram([1.0])
    other.add(0.5, "d" * 32)
    one.merge(other)
    assert [example.trace_id for example in one.examples.values()] == ["d" * 32]
