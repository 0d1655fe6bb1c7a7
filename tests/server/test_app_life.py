"""The life of a server: the port opens, models load, requests are served, a signal drains it, engines stop, it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman import __version__
from dragoman.server.admission import Admission
from dragoman.server.registry import LoadProgress, ModelRegistry, ServedModel, ServerState
from dragoman.server.run import ListenConfig, bind, bind_all
from tests.support.fake_service import FakeEngine, FakeService, Gate, Script
from tests.support.line_dialect import line_dialects
from tests.support.patience import PATIENCE_S
from tests.support.running_server import RunningServer, post_bytes, read_to_end, read_until, running_server
from tests.support.tables import table

pytestmark = pytest.mark.varies("signals and the end of asyncio's loops differ between Pythons")

EMBEDDING_PATHS = (
    *("/v1/embeddings", "/v3/embeddings", "/embed", "/api/embed", "/api/embeddings"),
    *("/embedding", "/embeddings", "/api/v0/embeddings"),
    *("/embed_all", "/embed_sparse", "/pooling", "/classify", "/predict"),
    *("/rerank", "/v1/rerank", "/v2/rerank", "/v3/rerank", "/v1/score", "/score"),
)
READINESS = ("/ping", "/health", "/v1/health", "/v2/health/ready")


def statuses(path: str, answer: httpx.Response) -> Any:
    """What an answer says of each model; KServe's clients are told whether the server is ready as well."""
    told = answer.json()
    if path.endswith("health"):  # as llama.cpp's clients read it
        assert told.pop("status") == {200: "ok", 500: "error", 503: "loading model"}[answer.status_code]
    if not path.startswith("/v2/"):
        return told
    assert told["ready"] == (answer.status_code == 200)
    return told["models"]


def model(name: str, *aliases: str) -> ServedModel:
    """A model for registry tests."""
    return ServedModel(name, FakeService(), FakeEngine(), line_dialects(), Admission(name), aliases)


class TestHealth:
    @table("path", READINESS)
    def test_a_served_model_is_healthy(self, client: httpx.Client, path: str) -> None:
        answer = client.get(path)
        assert (answer.status_code, statuses(path, answer)) == (200, {"fake": {"status": "Healthy"}})

    @table("path", READINESS)
    def test_a_dead_engine_is_500(self, server: RunningServer, client: httpx.Client, path: str) -> None:
        server.engine.death = "out of memory"
        answer = client.get(path)
        assert (answer.status_code, statuses(path, answer)) == (500, {"fake": {"status": "FAILED"}})

    def test_liveness_turns_red_only_with_the_engine(self, server: RunningServer, client: httpx.Client) -> None:
        assert client.get("/v2/health/live").json() == {"status": "Healthy", "live": True}
        server.engine.death = "out of memory"
        dead = client.get("/v2/health/live")
        assert (dead.status_code, dead.json()) == (500, {"status": "Unhealthy", "live": False})


class TestIndex:
    """`GET /`, for people and load balancers that know only the address."""

    def test_programs_are_told_what_is_here(self, client: httpx.Client) -> None:
        answer = client.get("/")
        index = answer.json()
        assert (answer.status_code, answer.headers["vary"]) == (200, "accept")
        assert index["models"] == {"fake": {"status": "Healthy"}}
        for path in (index["docs"], index["openapi"]):
            assert client.get(path).status_code == 200
        calls = [call for calls in index["routes"].values() for call in calls]
        documented = client.get("/openapi.json").json()["paths"]
        all_calls = {f"{method.upper()} {path}" for path, item in documented.items() for method in item}
        others = all_calls - set(calls)
        assert len(calls) == len(set(calls))
        assert "POST /v1/chat/completions" in calls
        assert others == {f"POST {path}" for path in EMBEDDING_PATHS}  # this model generates

    def test_browsers_are_sent_to_the_playground(self, client: httpx.Client) -> None:
        answer = client.get("/", headers={"accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"})
        assert (answer.status_code, answer.headers["location"]) == (307, "playground")

    @table("accept", ["*/*", "text/html"])
    def test_it_is_as_healthy_as_the_server(self, server: RunningServer, client: httpx.Client, accept: str) -> None:
        server.engine.death = "out of memory"
        assert client.get("/", headers={"accept": accept}).status_code == 500

    def test_posting_there_is_still_tgi(self, client: httpx.Client) -> None:
        assert client.post("/", content=b"{").json()["dialect"] == "tgi.root"


class TestModelLists:
    def test_openai_lists_name_every_model_and_alias(self, client: httpx.Client) -> None:
        listed = client.get("/v1/models").json()
        assert [entry["id"] for entry in listed["data"]] == ["fake", "nickname"]
        assert listed["data"][0] == {
            "id": "fake", "object": "model", "created": 7, "owned_by": "dragoman", "max_model_len": 64,
            "aliases": ["fake", "nickname"],
        }  # fmt: skip
        assert client.get("/v3/models").json()["data"][0]["owned_by"] == "OVMS"

    @table("name", ["fake", "nickname", "default"])
    @table("version", ["v1", "v3"])
    def test_one_model_can_be_looked_up(self, client: httpx.Client, version: str, name: str) -> None:
        assert client.get(f"/{version}/models/{name}").json()["id"] == "fake"

    @table(
        ("path", "dialect"),
        [
            ("/v1/models/nobody", "openai.completions"),
            ("/v3/models/nobody", "ovms.completions"),
            ("/models/nobody", "lmi"),
        ],
    )
    def test_a_missing_name_is_404_in_the_familys_shape(self, client: httpx.Client, path: str, dialect: str) -> None:
        answer = client.get(path)
        assert (answer.status_code, answer.json()["dialect"]) == (404, dialect)

    def test_lmi_lists_say_what_its_client_reads(self, client: httpx.Client) -> None:
        assert client.get("/models").json()["models"][0]["modelName"] == "fake"
        [description] = client.get("/models/fake").json()[0]["models"]
        assert (description["status"], description["queueSize"], description["requestInQueue"]) == ("READY", 1000, 3)

    def test_a_bad_page_is_400_in_the_front_ends_shape(self, client: httpx.Client) -> None:
        answer = client.get("/models?limit=none")
        assert (answer.status_code, answer.json()["type"]) == (400, "BadRequestException")

    def test_tgi_info_tells_the_limits(self, client: httpx.Client) -> None:
        info = client.get("/info").json()
        assert (info["model_id"], info["max_total_tokens"], info["max_concurrent_requests"]) == ("fake", 64, 1032)

    def test_tgi_info_tells_a_version_that_clients_can_compare(self, client: httpx.Client) -> None:
        """LlamaIndex refuses tools below 2.0.1; our own version would be lower."""
        info = client.get("/info").json()
        assert tuple(int(part) for part in info["version"].split(".")) >= (3, 0, 0)
        assert info["docker_label"] == f"dragoman-{__version__}"


class TestLoading:
    def test_the_port_answers_503_until_the_model_is_served(self) -> None:
        server = RunningServer()
        server.may_load.clear()
        server.start(wait_ready=False)
        try:
            for path in READINESS:
                pending = httpx.get(f"{server.url}{path}")
                assert (pending.status_code, statuses(path, pending)) == (503, {"fake": {"status": "PENDING"}})
            assert httpx.get(f"{server.url}/").status_code == 503
            server.registry.note_progress("fake", LoadProgress("building the graph", 0.25, 250, 1000))
            told = httpx.get(f"{server.url}/ping").json()["fake"]
            assert told.pop("seconds") >= 0
            assert told == {
                "status": "PENDING",
                "stage": "building the graph",
                "fraction": 0.25,
                "bytes_read": 250,
                "bytes_total": 1000,
            }
            assert httpx.get(f"{server.url}/v2/health/live").status_code == 200
            refused = httpx.post(f"{server.url}/v1/completions", json={"model": "fake"})
            assert (refused.status_code, refused.json()["dialect"]) == (503, "openai.completions")
            assert refused.json()["kind"] == "unavailable"
            assert "retry-after" in refused.headers
            assert httpx.post(f"{server.url}/v1/completions", json={"model": "nobody"}).status_code == 404
            assert httpx.get(f"{server.url}/v1/models").json()["data"] == []
        finally:
            server.may_load.set()
            server.http.stop()
        assert server.join() == 0

    def test_a_model_that_cannot_be_loaded_ends_the_server_with_1(self, caplog: pytest.LogCaptureFixture) -> None:
        server = RunningServer()
        server.load_error = RuntimeError("weights are missing")
        server.start(wait_ready=False)
        assert server.join() == 1
        assert server.registry.state is ServerState.DRAINING
        assert server.registry.reason == "RuntimeError: weights are missing"
        assert "weights are missing" in caplog.text

    def test_a_port_in_use_is_an_error_that_names_it(self) -> None:
        with bind("127.0.0.1", 0) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1 port {port}"):
                bind("127.0.0.1", port)

    def test_an_ipv6_address_can_be_bound(self) -> None:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("no IPv6 on this machine")
        with bind("::1", 0) as listener:
            assert listener.getsockname()[0] == "::1"

    def test_several_addresses_are_bound_at_one_port(self) -> None:
        with running_server(listen=ListenConfig(hosts=("127.0.0.1", "127.0.0.2"), port=0)) as server:
            port = httpx.URL(server.url).port or 0
            for host in ("127.0.0.1", "127.0.0.2"):
                assert httpx.get(f"http://{host}:{port}/ping").status_code == 200
            with pytest.raises(OSError, match=f"cannot listen on 127.0.0.2 port {port}"):
                bind_all(("127.0.0.3", "127.0.0.2"), port)
            bind("127.0.0.3", port).close()  # what was bound before is given back


class TestDrain:
    def test_readiness_flips_first_and_running_requests_finish(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO")
        gate = Gate()
        with running_server() as server, server.connect() as connection, ThreadPoolExecutor() as pool:
            server.service.script = Script(gates={3: gate})
            whole = pool.submit(httpx.post, f"{server.url}/invocations", json={}, timeout=PATIENCE_S)
            connection.sendall(post_bytes("/invocations", b'{"stream": true}'))
            head = read_until(connection, b"is")
            server.service.journal.wait_for(lambda lines: sum(line.startswith("pause") for line in lines) == 2)
            server.http.stop()
            while (ping := httpx.get(f"{server.url}/ping")).status_code == 200:
                pass
            assert (ping.status_code, ping.json()) == (503, {"fake": {"status": "Unhealthy"}})
            assert httpx.get(f"{server.url}/health").status_code == 503
            assert httpx.get(f"{server.url}/v2/health/live").status_code == 200
            refused = httpx.post(f"{server.url}/invocations", json={})
            assert (refused.status_code, refused.json()["kind"]) == (503, "unavailable")
            assert "retry-after" in refused.headers
            assert server.engine.journal.lines == []
            gate.open()
            assert whole.result().status_code == 200
            assert (head + read_to_end(connection)).endswith(b"the end\n\r\n0\r\n\r\n")
            assert server.join() == 0
            assert server.engine.journal.lines == ["shutdown"]
        [told] = [one for one in caplog.messages if one.startswith("stopping: ")]
        assert told == "stopping: waiting for 2 requests, at most 30 s; Ctrl-C or SIGTERM once more ends at once"

    def test_calls_are_still_taken_for_a_while_after_readiness_has_flipped(self) -> None:
        with running_server(listen=ListenConfig(port=0, drain_delay_s=600.0)) as server:
            server.http.stop()
            while httpx.get(f"{server.url}/ping").status_code == 200:
                pass
            assert httpx.post(f"{server.url}/invocations", json={}).status_code == 200
            server.http.stop()  # nobody waits any longer
            assert server.join() == 0

    def test_after_that_while_they_are_refused(self) -> None:
        gate = Gate()
        with running_server(listen=ListenConfig(port=0, drain_delay_s=0.05)) as server, server.connect() as connection:
            server.service.script = Script(gates={3: gate})
            connection.sendall(post_bytes("/invocations", b'{"stream": true}'))
            read_until(connection, b"is")
            server.http.stop()
            while not server.admission.is_draining:
                pass
            assert httpx.post(f"{server.url}/invocations", json={}).status_code == 503
            gate.open()
            assert read_to_end(connection).endswith(b"the end\n\r\n0\r\n\r\n")
            assert server.join() == 0

    def test_what_does_not_finish_in_time_is_aborted_with_the_engine(self) -> None:
        with running_server(listen=ListenConfig(port=0, drain_s=0.0)) as server, server.connect() as connection:
            server.service.script = Script(gates={3: Gate()})
            connection.sendall(post_bytes("/invocations", b'{"stream": true}', "x-request-id: late"))
            read_until(connection, b"is")
            server.http.stop()
            server.engine.journal.wait_for(lambda lines: lines == ["shutdown"])
            connection.close()  # the fake engine cannot fail the request, so its client has to leave
            server.service.journal.wait_for(lambda lines: "abort late" in lines)

    def test_a_second_signal_does_not_wait_for_running_requests(self) -> None:
        with running_server() as server, server.connect() as connection:
            server.service.script = Script(gates={3: Gate()})
            connection.sendall(post_bytes("/invocations", b'{"stream": true}'))
            read_until(connection, b"is")
            server.http.stop()
            server.http.stop()
            assert server.join() == 0

    def test_an_engine_that_fails_to_stop_keeps_nobody(self, caplog: pytest.LogCaptureFixture) -> None:
        async def fail(drain_s: float) -> None:
            raise RuntimeError("stuck")

        with running_server() as server:
            server.engine.shutdown = fail  # type: ignore[method-assign]
            server.http.stop()
            assert server.join() == 0
        assert "the engine of model fake did not stop cleanly" in caplog.text


PROGRAM = """
import sys
from dragoman.server.app import ServerConfig
from dragoman.server.registry import ModelRegistry
from dragoman.server.run import ListenConfig, run
from tests.support.line_dialect import line_dialects
from tests.server.test_app_life import model

async def load(registry):
    registry.add(model("fake"))

def on_listening(host, port):
    sys.stdout.write(f"{port}\\n")
    sys.stdout.flush()

sys.exit(run(ModelRegistry(line_dialects()), ServerConfig(), ListenConfig(port=0), load, on_listening))
"""


@table("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_ends_the_process_cleanly(number: signal.Signals) -> None:
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
    command: Any = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        while httpx.get(f"http://127.0.0.1:{port}/ping").status_code != 200:
            pass
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, "")


class TestRegistry:
    def test_names_and_aliases_are_taken_once(self) -> None:
        registry = ModelRegistry(line_dialects())
        registry.add(model("a", "b"))
        with pytest.raises(ValueError, match="'b' is already served by model 'a'"):
            registry.add(model("c", "b"))

    def test_a_model_may_be_called_like_a_placeholder(self) -> None:
        registry = ModelRegistry(line_dialects())
        registry.add(model("first"))
        registry.add(model("model"))
        assert registry.find("model").name == "model"
        assert registry.find("dummy").name == "first"

    def test_it_cannot_be_ready_without_a_model(self) -> None:
        with pytest.raises(ValueError, match="no model was added"):
            ModelRegistry(line_dialects()).mark_ready()

    def test_a_drain_that_began_while_loading_is_not_undone(self) -> None:
        registry = ModelRegistry(line_dialects())
        registry.drain()
        registry.add(model("a"))
        registry.mark_ready()
        assert registry.state is ServerState.DRAINING
