"""A client API is one module and its name in one list: what else there is of it follows from that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest
from openapi_spec_validator import validate

from dragoman.cli.banner import Address, BannerFacts, banner
from dragoman.server import apis
from dragoman.server.apis import all_apis
from dragoman.server.app import ServerConfig
from dragoman.server.descriptions import used_components
from dragoman.server.endpoints import Endpoints, joined_routes
from dragoman.server.operations import Api
from dragoman.server.registry import ModelRegistry
from dragoman.server.security.gate import Gate
from tests.support.api_document import Checker
from tests.support.every_api import NAMES_WITH_TOY
from tests.support.every_api import TOY as TOY_NAME
from tests.support.real_dialects import real_dialects
from tests.support.running_server import RunningServer, running_server
from tests.support.tables import table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "adding-an-api.md"
TOY = Path(__file__).resolve().parents[1] / "support" / "toy_api.py"


@pytest.fixture(scope="module", autouse=True)
def named() -> Iterator[None]:
    """Add the toy's name to the list of names, and nothing else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apis, "NAMES", NAMES_WITH_TOY)
        yield


@pytest.fixture(scope="module")
def shared_server(named: None) -> Iterator[RunningServer]:
    """A server with the real dialects and the toy's, whose answers are scripted."""
    with running_server(dialects=real_dialects()) as server:
        yield server


@pytest.fixture
def document(client: httpx.Client) -> Any:
    """What the server says of itself."""
    return client.get("/openapi.json").json()


def test_it_answers_whole(client: httpx.Client) -> None:
    answer = client.post("/parrot/say", json={"heard": "a", "most_tokens": 3})
    assert (answer.status_code, answer.json()) == (200, {"said": " Deep learning is"})


def test_it_streams(client: httpx.Client) -> None:
    body = {"heard": "a", "most_tokens": 3, "stream": True}
    with client.stream("POST", "/parrot/say", json=body) as answer:
        assert answer.headers["content-type"] == "application/jsonlines"
        lines = list(answer.iter_lines())
    assert lines == ['{"squawk":" Deep"}', '{"squawk":" learning"}', '{"squawk":" is"}']


def test_it_answers_with_what_it_has_made_itself(client: httpx.Client) -> None:
    assert client.get("/parrot/perches").json() == {"perches": ["fake"]}


def test_its_model_is_the_one_that_its_body_names(client: httpx.Client) -> None:
    answer = client.post("/parrot/say", json={"heard": "a", "model": "nobody"})
    assert answer.status_code == 404
    assert answer.json()["complaint"].startswith("Model or workflow not found: nobody")


@table(
    ("method", "path", "status", "about"),
    [
        ("POST", "/parrot/nothing", 404, "Unknown path /parrot/nothing: the nearest one is /parrot/"),
        ("GET", "/parrot/say", 405, "GET is not allowed for /parrot/say: OPTIONS, POST are"),
        ("DELETE", "/parrot/perches", 405, "DELETE is not allowed for /parrot/perches: GET, HEAD, OPTIONS are"),
        ("POST", "/parrot/say", 400, "the parrot did not understand: Object missing required field `heard`"),
    ],
)
def test_it_tells_errors_below_its_prefix(
    client: httpx.Client, method: str, path: str, status: int, about: str
) -> None:
    answer = client.request(method, path, json={} if method == "POST" else None)
    assert answer.status_code == status
    assert set(answer.json()) == {"complaint", "about"}
    assert answer.json()["complaint"].startswith(about)
    if status == 405:
        assert answer.headers["allow"] in about


def test_it_tells_what_comes_before_it() -> None:
    config = ServerConfig(api_keys=frozenset({"secret"}), max_request_size_bytes=20)
    with running_server(config, dialects=real_dialects()) as server:
        url = f"{server.url}/parrot/say"
        keyless = httpx.post(url, json={"heard": "a"})
        assert (keyless.status_code, keyless.headers["www-authenticate"]) == (401, "Bearer")
        too_long = httpx.post(url, json={"heard": "a" * 20}, headers={"api-key": "secret"})
        assert too_long.status_code == 413
        for answer in (keyless, too_long):
            assert set(answer.json()) == {"complaint", "about"}


def test_it_is_described(document: Any) -> None:
    schemas = document["components"]["schemas"]
    paths = {path: item for path, item in document["paths"].items() if path.startswith("/parrot")}
    components = {**document["components"], "schemas": used_components(paths, schemas)}
    validate({**document, "paths": paths, "components": components})  # the rest has a test of its own
    assert schemas["Said"]["properties"] == {"said": {"type": "string"}}
    assert {"Question", "Squawk", "Complaint", "Perches"} <= set(schemas)
    say = document["paths"]["/parrot/say"]["post"]
    assert say["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Question"}
    assert set(say["responses"]) == {"200", "400", "401", "403", "404", "413", "415", "429", "500", "503", "504"}
    assert {"name": "Parrot"} in document["tags"]  # by which the page groups what it shows
    assert "`/parrot` Parrot" in document["info"]["description"]


def test_it_answers_as_it_is_described(document: Any, client: httpx.Client) -> None:
    checker = Checker(document)
    body = document["paths"]["/parrot/say"]["post"]["requestBody"]["content"]["application/json"]["example"]
    for sent in (body, {**body, "stream": False}, {}):
        answer = client.post("/parrot/say", json=sent)
        checker.check_answer(
            ("POST", "/parrot/say"), answer.status_code, answer.headers["content-type"], answer.content
        )
        assert checker.is_documented("/parrot/say", sent) is (answer.status_code == 200)


def test_it_stands_in_the_list_at_the_root(client: httpx.Client) -> None:
    routes = client.get("/", headers={"accept": "application/json"}).json()["routes"]
    assert routes["Parrot"] == ["POST /parrot/say", "GET /parrot/perches"]


def test_it_stands_in_the_banner() -> None:
    text = banner(BannerFacts("m", "/models/m", Address("127.0.0.1", 8080)))
    assert "Parrot" in text


PARROT = import_module(TOY_NAME).API


@table(
    "listed",
    [
        (*all_apis(), PARROT, replace(PARROT, name="macaw", operations=())),
        (*all_apis(), replace(PARROT, teller=None)),
        (PARROT,),
    ],
    ids=["two own a path", "nobody tells", "nobody owns the rest"],
)
def test_paths_that_two_apis_own_or_none_are_noticed_at_start(listed: tuple[Api, ...]) -> None:
    with pytest.raises(ValueError, match="own"):
        Endpoints(listed, ModelRegistry({}), Gate(0))


def test_an_operation_that_two_apis_have_is_noticed_at_start() -> None:
    twice = (*all_apis(), replace(PARROT, name="macaw", owns=()))
    with pytest.raises(ValueError, match="route POST /parrot/say is declared twice"):
        joined_routes(list(Endpoints(twice, ModelRegistry({}), Gate(0)).routes()))


def test_the_page_on_adding_an_api_shows_this_one() -> None:
    code = PAGE.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    assert code == TOY.read_text(encoding="utf-8")
