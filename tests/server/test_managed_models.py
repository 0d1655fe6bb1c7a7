"""Models that clients load, replace and unload, over real HTTP: LMI's operations, and SageMaker's on the same paths."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from dragoman.errors import EngineFailed, InvalidRequest
from dragoman.server.app import ServerConfig
from tests.support.fake_service import Gate, Script
from tests.support.real_dialects import real_dialects
from tests.support.running_server import RunningServer, post_bytes, running_server
from tests.support.tables import table

BODY = {"inputs": "hi", "parameters": {"max_new_tokens": 50}}
TEXT = " Deep learning is fun. 🍊"


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """A server whose models come and go; `fake` is there from the start."""
    with running_server(dialects=real_dialects(), has_hosting=True) as server:
        yield server


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    """An HTTP client of that server."""
    with httpx.Client(base_url=server.url) as client:
        yield client


def status_of(client: httpx.Client, name: str) -> dict[str, Any]:
    """The description of a model."""
    [workflow] = client.get(f"/models/{name}").json()
    assert workflow["workflowName"] == name
    [model] = workflow["models"]
    return dict(model)


def until(client: httpx.Client, name: str, status: str) -> dict[str, Any]:
    """The description of a model, once it has that status."""
    while (model := status_of(client, name))["status"] != status:
        pass
    return model


def listed(client: httpx.Client) -> list[tuple[str, str]]:
    """Names and statuses."""
    return [(model["modelName"], model["status"]) for model in client.get("/models").json()["models"]]


class TestRegistering:
    def test_a_model_is_registered_with_a_query_and_answers(self, server: RunningServer, client: httpx.Client) -> None:
        answer = client.post("/models?url=file:///opt/ml/models/small.tar.gz&model_version=2")
        assert (answer.status_code, answer.content) == (200, b'{"status":"Model \\"small\\" registered."}')
        assert answer.headers["content-type"] == "application/json"
        assert client.post("/predictions/small", json=BODY).json() == {"generated_text": TEXT}
        assert client.post("/models/small/invoke", json=BODY).status_code == 200
        assert client.post("/invocations?model_name=small&model_version=2", json=BODY).status_code == 200
        assert len(server.hosting.services["small"][0].requests) == 3
        assert server.service.requests == []

    @table(
        ("url", "name"),
        [
            ("a/b/", "b"),
            ("b.tgz", "b"),
            ("b.ZIP", "b"),
            ("llama-3.1-8b", "llama-3.1-8b"),
            ("file:///opt/ml/models/b%2Dc", "b-c"),
        ],
    )
    def test_a_model_without_a_name_is_called_like_the_end_of_its_url(
        self, server: RunningServer, client: httpx.Client, url: str, name: str
    ) -> None:
        assert client.post("/models", params={"url": url}).json() == {"status": f'Model "{name}" registered.'}
        assert client.delete(f"/models/{name}").status_code == 200

    def test_every_parameter_acts_or_is_named(self, server: RunningServer, client: httpx.Client) -> None:
        query = {
            "url": "a", "model_name": "m", "model_version": "3", "engine": "Python", "device": "gpu0",
            "batch_size": "4", "job_queue_size": "7", "max_batch_delay": "5", "max_idle_time": "60", "min_worker": "1",
            "max_worker": "2", "synchronous": "true", "template": "t", "option.dtype": "f32", "colour": "1",
        }  # fmt: skip
        answer = client.post("/models", params=query)
        assert answer.status_code == 200
        [source] = server.hosting.sources
        assert (source.url, source.name, source.version) == ("a", "m", "3")
        assert source.options == {"batch_size": "4", "job_queue_size": "7", "option.dtype": "f32"}
        ignored = "engine,device,max_batch_delay,max_idle_time,min_worker,max_worker,template,colour"
        assert answer.headers["x-dragoman-ignored"] == ignored

    def test_what_has_its_effect_is_not_named(self, client: httpx.Client) -> None:
        answer = client.post("/models?url=a&device=cpu&batch_size=&job_queue_size=5")
        assert answer.status_code == 200
        assert "x-dragoman-ignored" not in answer.headers

    @table(
        "content",
        [
            (
                {
                    "model_name": "m",
                    "url": "/opt/ml/models/m/model",
                    "batch_size": 4,
                    "synchronous": True,
                    "device": None,
                }
            ),
            ("model_name=m&url=%2Fopt%2Fml%2Fmodels%2Fm%2Fmodel&batch_size=4&synchronous=true"),
        ],
        ids=["json", "form"],
    )
    def test_a_body_says_the_same(self, server: RunningServer, client: httpx.Client, content: Any) -> None:
        if isinstance(content, str):
            answer = client.post(
                "/models", content=content, headers={"content-type": "application/x-www-form-urlencoded"}
            )
        else:
            answer = client.post("/models", json=content)
        assert (answer.status_code, answer.json()) == (200, {"status": 'Model "m" registered.'})
        assert "x-dragoman-ignored" not in answer.headers
        assert server.hosting.sources.pop().options == {"batch_size": "4"}
        assert client.delete("/models/m").status_code == 200

    def test_json_that_curl_calls_a_form_is_json(self, client: httpx.Client) -> None:
        headers = {"content-type": "application/x-www-form-urlencoded"}
        assert client.post("/models", content=b'{"url": "a"}', headers=headers).status_code == 200

    @table(
        ("query", "content", "media_type", "words"),
        [
            ("", b"", "", "Parameter url is required."),
            ("", b"{}", "application/json", "Parameter url is required."),
            ("url=", b"", "", "Parameter url is required."),
            ("url=a&min_worker=x", b"", "", 'Parameter min_worker must be an integer, got "x"'),
            ("url=a&synchronous=maybe", b"", "", 'Parameter synchronous must be true or false, got "maybe"'),
            ("url=/etc/passwd", b"", "", "url=/etc/passwd: must be the path of a model in the model store"),
            ("url=../b", b"", "", "must be the path of a model in the model store"),
            ("", b"[]", "application/json", "The body must be a JSON object with the field 'url', got []"),
            ("", b"{", "application/json", "The body is not valid JSON: it ends too early"),
            (
                "",
                b'{"url": ["a"]}',
                "application/json",
                'Parameter url must be a text, a number or a boolean, got ["a"]',
            ),
            ("url=a", b"<a/>", "text/xml", "Content type 'text/xml' is not supported"),
        ],
    )
    def test_a_wrong_call_is_told_by_the_front_end(
        self, client: httpx.Client, query: str, content: bytes, media_type: str, words: str
    ) -> None:
        answer = client.post(f"/models?{query}", content=content, headers={"content-type": media_type})
        body = answer.json()
        assert (answer.status_code, body["code"], body["type"]) == (400, 400, "BadRequestException")
        assert words in body["message"]
        assert listed(client) == [("fake", "READY")]

    def test_what_cannot_be_done_has_its_status(self, server: RunningServer, client: httpx.Client) -> None:
        server.hosting.room = 1
        server.hosting.failures = {
            "broken": EngineFailed("Model broken could not be loaded: KeyError: 'x'"),
            "unusable": InvalidRequest("config.json: no architectures"),
        }
        assert client.post("/models?url=a").status_code == 200
        found = {}
        for url in ("a", "b", "nothing"):
            answer = client.post("/models", params={"url": url})
            body = answer.json()
            assert (set(body), body["code"]) == ({"code", "type", "message"}, answer.status_code)
            found[url] = (body["code"], body["type"])
        server.hosting.room = None
        for url in ("broken", "unusable"):
            body = client.post("/models", params={"url": url}).json()
            found[url] = (body["code"], body["type"])
        assert found == {
            "a": (409, "ConflictException"),
            "b": (507, "InsufficientMemoryException"),
            "nothing": (404, "ModelNotFoundException"),
            "broken": (500, "InternalServerException"),
            "unusable": (400, "BadRequestException"),
        }

    def test_a_failure_that_was_told_leaves_nothing_behind(self, server: RunningServer, client: httpx.Client) -> None:
        server.hosting.failures["broken"] = EngineFailed("no")
        assert client.post("/models?url=broken").status_code == 500
        assert listed(client) == [("fake", "READY")]
        assert client.get("/models/broken").status_code == 404

    def test_a_load_goes_on_when_its_client_leaves(self, server: RunningServer, client: httpx.Client) -> None:
        server.hosting.gates["slow"] = Gate()
        with server.connect() as leaving:
            leaving.sendall(post_bytes("/models?url=slow", b""))
            server.hosting.journal.wait_for(lambda lines: "load slow" in lines)
        server.hosting.gates["slow"].open()
        until(client, "slow", "READY")

    def test_two_loads_of_one_model_at_once_are_one_and_a_conflict(
        self, server: RunningServer, client: httpx.Client
    ) -> None:
        server.hosting.gates["slow"] = Gate()
        statuses: list[int] = []
        thread = threading.Thread(target=lambda: statuses.append(client.post("/models?url=slow").status_code))
        thread.start()
        server.hosting.journal.wait_for(lambda journal: "load slow" in journal)
        assert httpx.post(f"{server.url}/models?url=slow").status_code == 409
        assert httpx.post(f"{server.url}/models?url=slow&synchronous=false").status_code == 409
        assert httpx.delete(f"{server.url}/models/slow").status_code == 409
        server.hosting.gates["slow"].open()
        thread.join()
        assert statuses == [200]


class TestWithoutWaiting:
    def test_the_answer_comes_at_once_and_the_list_tells_how_it_goes(
        self, server: RunningServer, client: httpx.Client
    ) -> None:
        server.hosting.gates["slow"] = Gate()
        answer = client.post("/models?url=slow&synchronous=false&max_worker=2")
        assert (answer.status_code, answer.content) == (202, b'{"status":"Model \\"slow\\" registration scheduled."}')
        assert answer.headers["x-dragoman-ignored"] == "max_worker"
        model = until(client, "slow", "PENDING")
        assert (model["loadedAtStartup"], model["workerGroups"][0]["workers"]) == (False, [])
        assert listed(client) == [("fake", "READY"), ("slow", "PENDING")]
        assert client.post("/predictions/slow", json=BODY).status_code == 503
        server.hosting.gates["slow"].open()
        model = until(client, "slow", "READY")
        assert (model["loadedAtStartup"], len(model["workerGroups"][0]["workers"])) == (False, 1)
        assert status_of(client, "fake")["loadedAtStartup"] is True
        assert client.post("/predictions/slow", json=BODY).status_code == 200

    @table(
        ("url", "reason"),
        [("broken", "no weights"), ("nothing", "url=nothing: the model store holds no directory or archive there")],
    )
    def test_a_failure_is_told_to_who_asks_until_it_is_forgotten(
        self, server: RunningServer, client: httpx.Client, url: str, reason: str
    ) -> None:
        server.hosting.failures["broken"] = EngineFailed("no weights")
        assert client.post(f"/models?url={url}&synchronous=false").status_code == 202
        while listed(client)[1:] != [(url, "FAILED")]:
            pass
        assert status_of(client, url)["reason"] == reason
        assert client.delete(f"/models/{url}").json() == {"status": f'Model or workflow "{url}" unregistered'}
        assert listed(client) == [("fake", "READY")]
        assert client.delete(f"/models/{url}").status_code == 404

    def test_a_model_that_failed_may_be_loaded_again(self, server: RunningServer, client: httpx.Client) -> None:
        client.post("/models?url=nothing&model_name=m&synchronous=false")
        until(client, "m", "FAILED")
        assert client.post("/models?url=something&model_name=m").status_code == 200
        assert listed(client) == [("fake", "READY"), ("m", "READY")]


class TestReplacing:
    def test_calls_in_flight_finish_on_the_old_model_and_no_call_is_refused(
        self, server: RunningServer, client: httpx.Client
    ) -> None:
        client.post("/models?url=one&model_name=m&model_version=1")
        [old] = server.hosting.services["m"]
        gate = Gate()
        old.script = Script(gates={1: gate})
        answers: list[httpx.Response] = []
        running = threading.Thread(target=lambda: answers.append(httpx.post(f"{server.url}/predictions/m", json=BODY)))
        running.start()
        old.journal.wait_for(lambda journal: any(line.startswith("pause") for line in journal))
        server.hosting.gates["m"] = Gate()
        replacing = threading.Thread(
            target=lambda: answers.append(httpx.put(f"{server.url}/models/m?url=two&min_worker=1"))
        )
        replacing.start()
        server.hosting.journal.wait_for(lambda journal: journal.count("load m") == 2)
        old.script = Script()
        assert client.post("/predictions/m", json=BODY).status_code == 200
        server.hosting.gates["m"].open()
        replacing.join()
        [replaced] = answers
        assert (replaced.status_code, replaced.content) == (200, b'{"status":"Model \\"m\\" replaced."}')
        assert replaced.headers["x-dragoman-ignored"] == "min_worker"
        assert client.post("/predictions/m/1", json=BODY).status_code == 200
        new = server.hosting.services["m"][1]
        assert (len(old.requests), len(new.requests)) == (2, 1)
        assert status_of(client, "m")["modelUrl"] == "two"
        gate.open()
        running.join()
        assert answers[1].json() == {"generated_text": TEXT}
        server.hosting.journal.wait_for(lambda journal: "left m" in journal)

    def test_a_replacement_that_nobody_waits_for(self, server: RunningServer, client: httpx.Client) -> None:
        answer = client.put("/models/nickname?url=two&synchronous=false")
        assert (answer.status_code, answer.json()) == (202, {"status": 'Model "fake" replacement scheduled.'})
        while (model := status_of(client, "fake"))["modelUrl"] != "two":
            pass
        assert model["loadedAtStartup"] is False

    def test_a_replacement_that_fails_leaves_the_old_model(self, server: RunningServer, client: httpx.Client) -> None:
        server.hosting.failures["fake"] = EngineFailed("no")
        assert client.put("/models/fake?url=two").status_code == 500
        assert client.put("/models/fake?url=/elsewhere").status_code == 400
        assert client.post("/predictions/fake", json=BODY).status_code == 200
        assert listed(client) == [("fake", "READY")]

    def test_scaling_workers_is_accepted_and_named(self, server: RunningServer, client: httpx.Client) -> None:
        answer = client.put("/models/fake?min_worker=2&max_worker=4&synchronous=true")
        text = 'Workflow "fake" worker scaled. New Worker configuration min workers:2 max workers:4'
        assert (answer.status_code, answer.json()) == (200, {"status": text})
        assert answer.headers["x-dragoman-ignored"] == "min_worker,max_worker"
        assert client.put("/models/fake").json()["status"].endswith("min workers:-1 max workers:-1")

    def test_a_model_that_is_not_there_or_not_ready_is_not_updated(
        self, server: RunningServer, client: httpx.Client
    ) -> None:
        assert client.put("/models/nobody?min_worker=1").json()["type"] == "ModelNotFoundException"
        assert client.put("/models/nobody?url=a").status_code == 404
        server.hosting.gates["slow"] = Gate()
        client.post("/models?url=slow&synchronous=false")
        server.hosting.journal.wait_for(lambda journal: "load slow" in journal)
        assert client.put("/models/slow?min_worker=1").status_code == 503


class TestUnregistering:
    def test_calls_in_flight_finish_and_new_ones_are_refused(self, server: RunningServer, client: httpx.Client) -> None:
        client.post("/models?url=m")
        [service] = server.hosting.services["m"]
        gate = Gate()
        service.script = Script(gates={2: gate})
        answers: list[httpx.Response] = []
        with httpx.stream("POST", f"{server.url}/predictions/m", json={**BODY, "stream": True}) as running:
            thread = threading.Thread(target=lambda: answers.append(httpx.delete(f"{server.url}/models/m")))
            thread.start()
            server.hosting.journal.wait_for(lambda journal: "unload m" in journal)
            assert status_of(client, "m")["status"] == "UNLOADING"
            assert client.post("/predictions/m", json=BODY).status_code == 503
            assert answers == []
            gate.open()
            last = json.loads([line for line in running.iter_lines() if line][-1])
        assert last["generated_text"] == TEXT
        thread.join()
        assert answers[0].status_code == 200
        assert answers[0].content == b'{"status":"Model or workflow \\"m\\" unregistered"}'
        assert client.post("/predictions/m", json=BODY).status_code == 404
        assert listed(client) == [("fake", "READY")]

    def test_what_is_not_there_is_not_unloaded(self, client: httpx.Client) -> None:
        for name in ("nobody", "model", "default"):  # a placeholder is no name here
            body = client.delete(f"/models/{name}").json()
            assert (body["code"], body["type"]) == (404, "ModelNotFoundException")

    def test_a_model_goes_by_its_other_names_and_version(self, server: RunningServer, client: httpx.Client) -> None:
        client.post("/models?url=m&model_version=7")
        assert client.delete("/models/nickname").json() == {"status": 'Model or workflow "nickname" unregistered'}
        assert listed(client) == [("m", "READY")]
        assert client.post("/invocations", json=BODY).status_code == 200


class TestLists:
    def test_sagemaker_finds_what_its_contract_asks_for(self, client: httpx.Client) -> None:
        client.post("/models", json={"model_name": "0a1b", "url": "/opt/ml/models/0a1b/model"})
        first = client.get("/models?limit=1").json()
        assert first["nextPageToken"] == "1"
        second = client.get("/models?limit=1&next_page_token=1").json()
        assert second["models"] == [{"modelName": "0a1b", "modelUrl": "/opt/ml/models/0a1b/model", "status": "READY"}]
        assert [one["id"] for one in second["data"]] == ["0a1b"]
        assert "nextPageToken" not in second
        assert (
            client.post("/models", json={"model_name": "0a1b", "url": "/opt/ml/models/0a1b/model"}).status_code == 409
        )
        headers = {"X-Amzn-SageMaker-Target-Model": "whatever/0a1b.tar.gz"}  # only for logging, on this path
        assert client.post("/models/0a1b/invoke", json=BODY, headers=headers).status_code == 200
        assert client.delete("/models/0a1b").status_code == 200
        assert client.get("/models/0a1b").status_code == 404

    def test_other_lists_have_what_answers(self, server: RunningServer, client: httpx.Client) -> None:
        server.hosting.gates["slow"] = Gate()
        client.post("/models?url=slow&synchronous=false")
        client.post("/models?url=m")
        until(client, "slow", "PENDING")
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["fake", "nickname", "m"]


class TestKeysAndAbsence:
    CHANGES = (
        ("POST", "/models?url=a"),
        ("PUT", "/models/fake?url=a"),
        ("PUT", "/models/fake?min_worker=1"),
        ("DELETE", "/models/fake"),
        ("POST", "/v1/config/reload"),
    )

    def test_every_change_needs_the_key(self) -> None:
        config = ServerConfig(api_keys=frozenset({"secret"}))
        with running_server(config, dialects=real_dialects(), has_hosting=True) as server:
            for method, path in (*self.CHANGES, ("GET", "/models"), ("GET", "/v1/config")):
                assert httpx.request(method, f"{server.url}{path}").status_code == 401
            assert server.hosting.sources == []
            headers = {"authorization": "Bearer secret"}
            assert httpx.post(f"{server.url}/models?url=a", headers=headers).status_code == 200

    def test_a_server_whose_models_stay_says_what_would_change_that(self) -> None:
        with running_server(dialects=real_dialects()) as server, httpx.Client(base_url=server.url) as client:
            for method, path in self.CHANGES:
                answer = client.request(method, path)
                assert answer.status_code == 405
                assert method not in answer.headers["allow"]
                assert "start the server with --model-store DIRECTORY" in answer.text
            document = client.get("/openapi.json").json()
            assert set(document["paths"]["/models"]) == {"get"}
            assert "/v1/config/reload" not in document["paths"]

    def test_a_server_that_still_loads_changes_nothing(self) -> None:
        server = RunningServer(dialects=real_dialects(), has_hosting=True)
        server.may_load.clear()
        server.start(wait_ready=False)
        try:
            answer = httpx.post(f"{server.url}/models?url=a")
            assert (answer.status_code, answer.json()["type"]) == (503, "ServiceUnavailableException")
            assert "retry-after" in answer.headers
        finally:
            server.may_load.set()
            server.http.stop()
            server.join()

    def test_a_server_that_ends_gives_up_what_it_loads(self) -> None:
        with running_server(dialects=real_dialects(), has_hosting=True) as server:
            server.hosting.gates["slow"] = Gate()
            httpx.post(f"{server.url}/models?url=slow&synchronous=false")
            server.hosting.journal.wait_for(lambda journal: "load slow" in journal)
            server.http.stop()
            assert server.join() == 0
