"""What the server tells of calls: a line for each, metrics that add up with it, the list of what runs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dragoman.server.observation.tracing import missing_package
from tests.support.collector import Collector, attributes
from tests.support.differences import lacking
from tests.support.openmetrics import openmetrics_families
from tests.support.patience import PATIENCE_S
from tests.support.server_process import ServerProcess, serve

LONG = 2000  # tokens: of answers that are stopped
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(server: ServerProcess) -> Samples:
    families = text_string_to_metric_families(httpx.get(f"{server.base_url}/metrics").text)
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


class Watched:
    """What a server tells of calls from now on; earlier ones have ended."""

    def __init__(self, server: ServerProcess) -> None:
        wait_until_idle(server)
        self.server = server
        self.base_url = server.base_url
        self._num_lines = self._refused()
        self._before = samples(server)

    def counted(self) -> Samples:
        """The counters that have changed, by how much."""
        changes = {key: value - self._before.get(key, 0.0) for key, value in samples(self.server).items()}
        return {key: change for key, change in changes.items() if change}

    def lines(self, count: int) -> list[dict[str, Any]]:
        """The lines of so many calls, once they have been written; there are no others."""
        self._until(lambda lines: len(lines) >= self._num_lines + count)
        end = self._refused() - 1
        return self._lines()[self._num_lines : end]

    def _refused(self) -> int:
        """How many lines there are, up to that of a call that is refused now."""
        last = f"last-{uuid4()}"
        body = {"model": "demo", "prompt": "x", "max_tokens": -1}
        httpx.post(f"{self.server.base_url}/v1/completions", json=body, headers={"x-request-id": last}, timeout=60)
        self._until(lambda lines: any(line["id"] == last for line in lines))
        return next(number for number, line in enumerate(self._lines(), 1) if line["id"] == last)

    def _until(self, holds: Callable[[list[dict[str, Any]]], bool]) -> None:
        between_looks, until_s = threading.Event(), time.monotonic() + PATIENCE_S
        while not holds(self._lines()):
            assert time.monotonic() < until_s, self._lines()[-3:]
            between_looks.wait(0.005)

    def _lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in list(self.server.output) if line.startswith('{"id"')]


@pytest.fixture
def watched(server: ServerProcess) -> Watched:
    return Watched(server)


@pytest.fixture(scope="module")
def telling_server() -> Iterator[ServerProcess]:
    """It writes prompts into its lines, and tells its numbers by the names of other servers, too."""
    with serve(
        "--log-requests", "json", "--log-prompts", "true", "--metrics-compat", "vllm,tgi", "--name", "demo",
        "--dtype", "f32",
    ) as running:  # fmt: skip
        yield running


@pytest.fixture
def telling(telling_server: ServerProcess) -> Watched:
    return Watched(telling_server)


def of_calls(counted: Samples, name: str) -> dict[str, float]:
    """The sum over models and outcomes, by API."""
    found: dict[str, float] = {}
    for (sample, labels), value in counted.items():
        if sample == name:
            api = dict(labels)["api"]
            found[api] = found.get(api, 0) + value
    return found


CALLS: list[tuple[str, dict[str, Any], int]] = [
    ("/v1/completions", {"model": "demo", "prompt": "The sea is", "max_tokens": 5, "ignore_eos": True}, 200),
    (
        "/v1/completions",
        {"model": "demo", "prompt": ["One", "Two"], "max_tokens": 3, "n": 2, "ignore_eos": True, "stream": True},
        200,
    ),
    ("/invocations", {"inputs": "The sea", "parameters": {"max_new_tokens": 4, "ignore_eos_token": True}}, 200),
    ("/generate", {"inputs": "The sea", "parameters": {"max_new_tokens": 2}}, 200),
    ("/v1/completions", {"model": "demo", "prompt": "x", "max_tokens": -1}, 400),
    ("/v1/completions", {"model": "nobody", "prompt": "x"}, 404),
    ("/v3/completions", {"model": "demo", "prompt": "x", "max_tokens": 2, "ignore_eos": True}, 200),
]


def test_lines_and_metrics_add_up_with_what_clients_were_answered(watched: Watched) -> None:
    for path, body, status in CALLS:
        assert httpx.post(f"{watched.base_url}{path}", json=body, timeout=60).status_code == status
    metrics = watched.counted()
    lines = watched.lines(len(CALLS))
    assert [(line["path"], line["status"]) for line in lines] == [(path, status) for path, _, status in CALLS]
    assert [line["outcome"] for line in lines] == ["finished"] * 4 + ["refused"] * 2 + ["finished"]
    assert [line["completion_tokens"] for line in lines] == [5, 12, 4, lines[3]["completion_tokens"], 0, 0, 2]
    by_api: dict[str, dict[str, float]] = {}
    for line in lines:
        sums = by_api.setdefault(line["api"], dict.fromkeys(("calls", "prompt", "cached", "completion"), 0.0))
        sums["calls"] += 1
        for kind in ("prompt", "cached", "completion"):
            sums[kind] += line[f"{kind}_tokens"]
    calls = {api: sums["calls"] for api, sums in by_api.items()}
    assert of_calls(metrics, "dragoman_requests_total") == calls
    assert of_calls(metrics, "dragoman_request_seconds_count") == calls
    for kind in ("prompt", "cached", "completion"):
        counted = of_calls(metrics, f"dragoman_{kind}_tokens_of_requests_total")
        assert counted == {api: sums[kind] for api, sums in by_api.items() if sums[kind]}
    assert of_calls(metrics, "dragoman_errors_total") == {"openai": 2.0}
    errors = {
        (labels["model"], labels["reason"]): value
        for (name, pairs), value in metrics.items()
        if name == "dragoman_errors_total" and (labels := dict(pairs))
    }
    assert errors == {("demo", "invalid_parameter"): 1.0, ("", "not_found"): 1.0}


# what vLLM's and TGI's dashboards ask for, of what is counted here; histograms without their ends
OTHER_NAMES = {
    *(
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
    ),
    *("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total"),
    *("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:num_preemptions_total"),
    *("tgi_batch_current_size", "tgi_queue_size", "tgi_request_count", "tgi_request_success", "tgi_request_failure"),
}
OTHER_HISTOGRAMS = {
    *("vllm:iteration_tokens_total", "vllm:time_to_first_token_seconds", "vllm:time_per_output_token_seconds"),
    *("vllm:inter_token_latency_seconds", "vllm:e2e_request_latency_seconds", "vllm:request_queue_time_seconds"),
    *("vllm:request_prefill_time_seconds", "vllm:request_decode_time_seconds", "vllm:request_inference_time_seconds"),
    *("vllm:request_prompt_tokens", "vllm:request_generation_tokens", "vllm:request_max_num_generation_tokens"),
    *("tgi_request_duration", "tgi_request_queue_duration", "tgi_request_inference_duration"),
    *("tgi_request_mean_time_per_token_duration", "tgi_request_input_length", "tgi_request_generated_tokens"),
}
OTHER_LABELS = {"vllm:request_success_total": {"finished_reason"}, "tgi_request_failure": {"err"}}


def test_the_numbers_have_the_names_of_other_servers_too(telling: Watched) -> None:
    body = {"model": "demo", "prompt": "The sea is", "max_tokens": 5, "ignore_eos": True}
    for path in ("/v1/completions", "/v3/completions"):
        assert httpx.post(f"{telling.base_url}{path}", json=body, timeout=60).status_code == 200
    counted = {name: value for (name, _), value in telling.counted().items()}
    assert counted["vllm:generation_tokens_total"] == 10
    assert counted["tgi_request_count"] == counted["tgi_request_success"] == 2
    assert counted["vllm:time_to_first_token_seconds_count"] == 2
    assert counted["vllm:inter_token_latency_seconds_count"] == 8
    assert counted["tgi_request_generated_tokens_sum"] == 10
    shown = telling.server.metrics()
    assert shown["vllm:num_requests_running"] == shown["tgi_queue_size"] == 0
    assert shown["vllm:iteration_tokens_total_count"] == shown["dragoman_steps_total"]


def test_dashboards_of_other_servers_find_their_names_and_labels(telling: Watched) -> None:
    body = {"model": "demo", "prompt": "The sea is", "max_tokens": 5, "ignore_eos": True, "temperature": 0}
    url = f"{telling.base_url}/v1/completions"
    text = httpx.post(url, json=body, timeout=60).json()["choices"][0]["text"]
    httpx.post(url, json={**body, "n": 2, "temperature": 1}, timeout=60).raise_for_status()
    cut = httpx.post(url, json={**body, "stop": text[:2]}, timeout=60).json()["choices"][0]
    assert cut["finish_reason"] == "stop"
    assert httpx.post(url, json={**body, "max_tokens": -1}).status_code == 400
    with httpx.stream("POST", url, json=STREAMED, timeout=60) as answer:
        pieces = answer.iter_lines()
        next(pieces)
    wait_until_idle(telling.server)
    counted = telling.counted()
    openmetrics = httpx.get(f"{telling.base_url}/metrics", headers={"accept": "application/openmetrics-text"}).text
    labels: dict[str, set[str]] = {}
    for name, pairs in samples(telling.server):
        labels.setdefault(name, set()).update(dict(pairs))
    for name in OTHER_NAMES:
        own = {"model_name"} if name.startswith("vllm:") else {"model"}
        assert labels[name] == own | OTHER_LABELS.get(name, set()), name
    for name in OTHER_HISTOGRAMS:
        assert {f"{name}_bucket", f"{name}_sum", f"{name}_count"} <= labels.keys(), name
    assert values_by(counted, "vllm:request_success_total", "finished_reason") == {"stop": 1, "length": 3, "abort": 1}
    assert values_by(counted, "tgi_request_failure", "err") == {"invalid_parameter": 1, "dropped": 1}
    # strict readers take these names, too
    told = {family.name for family in openmetrics_families(openmetrics)}
    assert {"vllm:request_success", "vllm:iteration_tokens_total", "tgi_request_success"} <= told


def values_by(metrics: Samples, name: str, label: str) -> dict[str, float]:
    """The samples of a metric, of one model, by one of its labels."""
    return {dict(labels)[label]: value for (sample, labels), value in metrics.items() if sample == name}


def test_what_calls_came_to_is_told_by_outcome(watched: Watched, engine: str) -> None:
    url = f"{watched.base_url}/v1/completions"
    body = {"model": "demo", "prompt": "The sea is", "max_tokens": 5, "ignore_eos": True}
    httpx.post(url, json=body, timeout=60).raise_for_status()
    assert httpx.post(url, json={**body, "max_tokens": -1}).status_code == 400
    with httpx.stream("POST", url, json=STREAMED, timeout=60) as answer:
        pieces = answer.iter_lines()
        next(pieces)
    wait_until_idle(watched.server)
    metrics = watched.counted()
    (left,) = [line for line in watched.lines(3) if line["outcome"] == "client_gone"]
    every = {"finished": 1, "refused": 1, "client_gone": 1}
    assert values_by(metrics, "dragoman_requests_total", "outcome") == every
    assert values_by(metrics, "dragoman_request_seconds_count", "outcome") == every
    tokens = values_by(metrics, "dragoman_completion_tokens_of_requests_total", "outcome")
    assert tokens == {"finished": 5, "client_gone": left["completion_tokens"]}
    waiting = () if engine in lacking()["queue_ms"] else ("queue", "prefill")
    for name in (*waiting, "time_to_first_token", "decode", "inference", "mean_token"):
        counts = values_by(metrics, f"dragoman_{name}_seconds_count", "outcome")
        assert counts == {"finished": 1, "client_gone": 1}, name
    gaps = values_by(metrics, "dragoman_inter_token_seconds_count", "outcome")
    num_gaps = left["completion_tokens"] - 1
    assert gaps == {"finished": 4, **({"client_gone": num_gaps} if num_gaps else {})}
    assert values_by(metrics, "dragoman_sequences_total", "finish_reason") == {"length": 1, "abort": 1}


def test_times_of_a_line_fit_together(watched: Watched) -> None:
    body = {"model": "demo", "prompt": "The sea is", "max_tokens": 20, "ignore_eos": True}
    httpx.post(f"{watched.base_url}/v1/completions", json=body, timeout=60, headers={"x-request-id": "mine"})
    (line,) = watched.lines(1)
    assert line["id"] == "mine"
    assert 0 <= (line["queue_ms"] or 0) <= line["first_token_ms"] <= line["total_ms"]
    assert 0 < line["inter_token_ms"] <= line["inter_token_max_ms"] <= line["total_ms"]
    assert line["first_token_ms"] + 19 * line["inter_token_ms"] <= line["total_ms"] * 1.001
    assert "prompts" not in line


def test_a_client_that_leaves_is_told_and_its_call_is_listed_before(telling: Watched) -> None:
    body = {"model": "demo", "prompt": "The sea", "max_tokens": LONG, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{telling.base_url}/v1/completions", json=body, timeout=60) as answer:
        pieces = answer.iter_lines()  # kept: the end of this iterator would be the end of the answer
        assert next(pieces).startswith("data:")
        (running,) = httpx.get(f"{telling.base_url}/debug/requests").json()
        assert running["path"] == "/v1/completions"
        assert running["state"] == "running"
        assert running["completion_tokens"] >= 1
    wait_until_idle(telling.server)
    (line,) = telling.lines(1)
    assert line["outcome"] == "client_gone"
    assert 0 < line["completion_tokens"] < LONG
    assert line["prompts"] == ["The sea"]


def test_a_call_that_waits_for_a_place_is_listed_with_who_is_before_it(telling: Watched) -> None:
    url = f"{telling.base_url}/v1/completions"
    filling = {"model": "demo", "prompt": "The sea", "max_tokens": 900, "ignore_eos": True, "n": 16, "stream": True}
    asked = {"model": "demo", "prompt": "The sea is", "max_tokens": 1}
    between_looks = threading.Event()
    with ThreadPoolExecutor(2) as threads:
        with ExitStack() as places:
            answers = [places.enter_context(httpx.stream("POST", url, json=filling, timeout=60)) for _ in range(4)]
            pieces = [answer.iter_lines() for answer in answers]
            assert all(next(one).startswith("data:") for one in pieces)
            waiting = []
            for name in ("first", "second"):
                waiting.append(threads.submit(httpx.post, url, json=asked, headers={"x-request-id": name}, timeout=60))
                progress = None
                while progress is None or not progress["expected_ms"]:
                    between_looks.wait(0.01)
                    calls = httpx.get(f"{telling.base_url}/debug/requests").json()
                    progress = next((call["progress"] for call in calls if call["id"] == name), None)
                assert progress["ahead"] == len(waiting) - 1
                assert (progress["cache"], progress["processed"], progress["time_ms"]) == (0, 0, 0)
                assert progress["total"] > 1
        assert all(one.result().status_code == 200 for one in waiting)
    wait_until_idle(telling.server)


STREAMED = {"model": "demo", "prompt": "The sea", "max_tokens": LONG, "ignore_eos": True, "stream": True}


def wait_until_idle(server: ServerProcess) -> None:
    """Return once no call runs, and nothing is computed any more."""
    between_looks = threading.Event()
    while httpx.get(f"{server.base_url}/debug/requests").json() or server.metrics()["dragoman_requests_running"]:
        between_looks.wait(0.01)


def test_a_call_can_be_cancelled_by_its_id(watched: Watched) -> None:
    names = {"x-request-id": "long one"}
    url = watched.base_url
    assert httpx.post(f"{url}/cancel/long%20one").status_code == 404
    with httpx.stream("POST", f"{url}/v1/completions", json=STREAMED, headers=names, timeout=60) as answer:
        pieces = answer.iter_lines()
        next(pieces)
        assert httpx.post(f"{url}/cancel/long%20one").json() == {"cancelled": 1}
        rest = list(pieces)
    assert any('"error"' in piece and "was cancelled" in piece for piece in rest)
    wait_until_idle(watched.server)
    (line,) = watched.lines(1)
    assert (line["outcome"], line["error"]) == ("failed", "cancelled")
    assert line["completion_tokens"] < LONG


def test_a_call_that_does_not_stream_can_be_cancelled(watched: Watched) -> None:
    answers: list[httpx.Response] = []
    body = {**STREAMED, "stream": False}
    names = {"x-request-id": "whole"}

    def ask() -> None:
        answers.append(httpx.post(f"{watched.base_url}/v1/completions", json=body, headers=names, timeout=60))

    asking = threading.Thread(target=ask)
    asking.start()
    while httpx.post(f"{watched.base_url}/cancel/whole").status_code == 404:
        assert asking.is_alive()
    asking.join()
    assert answers[0].status_code == 503
    assert "was cancelled" in answers[0].json()["error"]["message"]


def test_a_client_may_say_how_long_it_waits(watched: Watched) -> None:
    body = {**STREAMED, "stream": False}
    for header in (("x-request-timeout-ms", "150"), ("grpc-timeout", "150m"), ("x-stainless-read-timeout", "0.15")):
        answer = httpx.post(f"{watched.base_url}/v1/completions", json=body, headers=dict([header]), timeout=60)
        assert answer.status_code == 503, header
        assert "0.15 s that the client allows" in answer.json()["error"]["message"], header
    wait_until_idle(watched.server)


def test_a_stream_may_take_longer_than_its_client_waits_for_each_byte(watched: Watched) -> None:
    headers = {"x-stainless-read-timeout": "0.05"}
    body = {**STREAMED, "max_tokens": 200}
    answer = httpx.post(f"{watched.base_url}/v1/completions", json=body, headers=headers, timeout=60)
    assert answer.text.endswith("data: [DONE]\n\n")
    assert '"error"' not in answer.text  # a key: the sampled text may have the word
    (line,) = watched.lines(1)
    assert line["total_ms"] > 50


def test_a_time_that_is_none_is_refused(watched: Watched) -> None:
    for header in (("x-request-timeout-ms", "soon"), ("x-request-timeout-ms", "0"), ("grpc-timeout", "5")):
        answer = httpx.post(f"{watched.base_url}/v1/completions", json=STREAMED, headers=dict([header]), timeout=60)
        assert answer.status_code == 400, header
        assert header[0] in answer.json()["error"]["message"]


def test_what_is_refused_at_the_door_has_a_line_too(tmp_path: Path) -> None:
    words = (
        "--load-models",
        "NONE",
        "--model-store",
        str(tmp_path),
        "--log-requests",
        "text",
        "--max-request-size",
        "100",
    )
    with serve(*words, environ={"DRAGOMAN_API_KEY": "k"}) as server:
        url = f"{server.base_url}/v1/completions"
        assert httpx.post(url, json={"prompt": "x"}).status_code == 401
        assert httpx.post(url, json={"prompt": "x" * 200}, headers={"x-api-key": "k"}).status_code == 413
        assert httpx.get(f"{server.base_url}/debug/requests").status_code == 401
        server.terminate()
        lines = [line for line in server.output if "dragoman.requests" in line]
    assert ["status=401" in line or "status=413" in line for line in lines] == [True, True]
    assert all("outcome=refused" in line for line in lines)


@pytest.mark.skipif(bool(missing_package("http/protobuf")), reason="needs dragoman[otel]")
def test_a_calls_span_holds_its_phases_one_after_the_other() -> None:
    collector = Collector()
    try:
        with serve("--dtype", "f32", "--otlp-traces-endpoint", collector.url) as running:
            body = {"model": "demo", "prompt": ["The sea", "The sky was"], "max_tokens": 5, "ignore_eos": True}
            httpx.post(f"{running.base_url}/v1/completions", json=body, timeout=60).raise_for_status()
            running.terminate()
    finally:
        collector.close()
    [whole] = [span for span in collector.spans if span.name == "text_completion demo"]
    assert attributes(whole)["gen_ai.usage.output_tokens"] == 10
    assert attributes(whole)["gen_ai.request.max_tokens"] == 5
    phases = [span for span in collector.spans if span.parent_span_id == whole.span_id]
    assert len(phases) == len(collector.spans) - 1
    by_request: dict[str, list[Any]] = {}
    for span in phases:
        by_request.setdefault(attributes(span)["dragoman.request.id"], []).append(span)
    assert len(by_request) == 2
    for spans in by_request.values():
        assert [span.name for span in spans] == ["prepare", "queue", "prefill", "decode"]
        times = [whole.start_time_unix_nano]
        for span in spans:
            times += [span.start_time_unix_nano, span.end_time_unix_nano]
        assert [*times, whole.end_time_unix_nano] == sorted([*times, whole.end_time_unix_nano])


def test_an_answers_own_timings_agree_with_its_usage(server: ServerProcess) -> None:
    body = {"model": "demo", "prompt": "The sea was calm and", "max_tokens": 9, "ignore_eos": True}
    for _ in range(2):  # the second time the prompt may be cached
        answer = httpx.post(
            f"{server.base_url}/v1/completions", json=body, headers={"x-dragoman-timings": "1"}, timeout=60
        ).json()
        timings, usage = answer["timings"], answer["usage"]
        assert timings["prompt_n"] + timings["cache_n"] == usage["prompt_tokens"]
        assert timings["cache_n"] == usage["prompt_tokens_details"]["cached_tokens"]
        assert timings["predicted_n"] == usage["completion_tokens"] == 9
        assert timings["prompt_ms"] > 0
        assert timings["predicted_per_second"] == pytest.approx(9000 / timings["predicted_ms"], rel=0.01)


@pytest.mark.needs("queue_ms")
def test_how_long_a_call_waited_is_among_its_timings(server: ServerProcess) -> None:
    body = {"model": "demo", "prompt": "The sea was calm and", "max_tokens": 2}
    asked = {"x-dragoman-timings": "1"}
    answer = httpx.post(f"{server.base_url}/v1/completions", json=body, headers=asked, timeout=60).json()
    assert answer["timings"]["queue_ms"] is not None, "queue_ms"


def test_loads_are_counted(server: ServerProcess) -> None:
    metrics = server.metrics()
    assert metrics["dragoman_model_loads_total"] == 1
    assert metrics["dragoman_model_load_seconds_count"] == 1


@pytest.mark.needs("dragoman_mask_wait_seconds", "dragoman_step_sequences")
def test_masks_and_sequences_of_steps_are_counted(server: ServerProcess) -> None:
    before = server.metrics()
    body = {"model": "demo", "prompt": "Say", "max_tokens": 4, "guided_choice": ["yes, it is", "no, it is not"], "n": 2}
    httpx.post(f"{server.base_url}/v1/completions", json=body, timeout=60).raise_for_status()
    after = server.metrics()
    assert after["dragoman_mask_wait_seconds_count"] >= before["dragoman_mask_wait_seconds_count"] + 4
    assert after["dragoman_step_seconds_count"] > before["dragoman_step_seconds_count"]
    num_steps = after["dragoman_step_sequences_count"] - before["dragoman_step_sequences_count"]
    assert num_steps >= 2
    assert after["dragoman_step_sequences_sum"] - before["dragoman_step_sequences_sum"] > num_steps  # two at a time
