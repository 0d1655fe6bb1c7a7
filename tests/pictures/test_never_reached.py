"""No address that a client can write leads to the machine itself, its neighbours, or a cloud's metadata.

A host on loopback counts who reaches it: nobody may, whatever an address, a name, a redirect or a resolver says.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from dragoman.pictures import fetching
from dragoman.pictures.addresses import Address
from dragoman.pictures.fetching import Fetcher, SystemNetwork
from dragoman.pictures.limits import PictureFault, PictureLimits
from tests.pictures.drawing import png
from tests.pictures.hosts import PUBLIC, Host, MadeUpNetwork, hosting, ok, redirect
from tests.pictures.test_addresses import NOT_PUBLIC, ODD
from tests.support.tables import table

NAME = "image_url.url"
UNFETCHED = f"{NAME} must be an image at a public address, sent within 30 seconds; it could not be fetched"

# PORT is that of the host on loopback, where connections that should not be made would arrive.
FORMS = [
    "http://127.0.0.1:PORT/", "http://127.0.0.1.:PORT/", "http://localhost:PORT/", "http://LOCALHOST.:PORT/", "HTTP://127.0.0.1:PORT",
    "http://127.1:PORT/", "http://2130706433:PORT/", "http://0x7f000001:PORT/", "http://0x7f.0.0.1:PORT/", "http://0:PORT/",
    "http://0177.0.0.1:PORT/", "http://127.0.0.1:PORT#@a.example/", "http://a.example@127.0.0.1:PORT/", "http://0.0.0.0:PORT/",
    "http://127.127.127.127:PORT/", "http://[::1]:PORT/", "http://[::]:PORT/", "http://[::ffff:127.0.0.1]:PORT/",
    "http://[::ffff:7f00:1]:PORT/", "http://[::127.0.0.1]:PORT/", "http://[64:ff9b::127.0.0.1]:PORT/",
    "http://[2002:7f00:1::]:PORT/", "http://[0:0:0:0:0:ffff:127.0.0.1]:PORT/", "http://[::1%25lo]:PORT/", "http://[fe80::1%lo]:PORT/",
    "http://127.0.0.%31:PORT/", "http://%31%32%37.0.0.1:PORT/", "http://１２７.0.0.1:PORT/", "http://127。0。0。1:PORT/",
    "http://a.example\\@127.0.0.1:PORT/", "http:\\\\127.0.0.1:PORT/", "http:/127.0.0.1:PORT/", "http:127.0.0.1:PORT/",
    "//127.0.0.1:PORT/", "https://127.0.0.1:PORT/", "file://127.0.0.1:PORT/", "ftp://127.0.0.1:PORT/", "gopher://127.0.0.1:PORT/_GET",
    "dict://127.0.0.1:PORT/", "http://127.0.0.1:PORT\t/", " http://127.0.0.1:PORT/", "http://127.0.0.1 :PORT/",
]  # fmt: skip


class WatchedNetwork(SystemNetwork):
    """The machine's own network, which counts connections; made-up names resolve to what a test says."""

    def __init__(self, **names: str) -> None:
        self._names = names
        self.connected: list[str] = []

    def resolve(self, host: str, port: int) -> list[Address]:
        """As `Network`; `name.example` is looked up in the test's table."""
        return super().resolve(self._names.get(host.removesuffix(".example"), host), port)

    def connect(self, address: Address, port: int, timeout_s: float) -> socket.socket:
        """As `Network`."""
        self.connected.append(str(address))
        return super().connect(address, port, timeout_s)


@pytest.fixture
def inside() -> Iterator[Host]:
    """The host that must never be reached."""
    with hosting(ok(png())) as host:
        yield host


def limits(host: Host) -> PictureLimits:
    """Everything is allowed that an operator can allow."""
    return PictureLimits(timeout_s=30, allowed_hosts=("*", f"*:{host.port}"))


def refusal(fetcher: Fetcher, url: str) -> PictureFault:
    with pytest.raises(PictureFault) as caught:
        fetcher.begin(url, NAME).run()
    return caught.value


@table("form", FORMS)
def test_not_by_its_address(form: str, inside: Host) -> None:
    network = WatchedNetwork()
    refusal(Fetcher(limits(inside), network), form.replace("PORT", str(inside.port)))
    assert (inside.num_connections, network.connected) == (0, [])


@table("address", [text for text in NOT_PUBLIC if "%" not in text])
def test_not_by_a_name(address: str, inside: Host) -> None:
    network = MadeUpNetwork({"a.example": [[address]]}, {address: inside.port})
    assert refusal(Fetcher(limits(inside), network), "http://a.example/").message == UNFETCHED
    assert (inside.num_connections, network.connected) == (0, [])


def test_not_by_a_name_that_the_machine_resolves(inside: Host) -> None:
    network = WatchedNetwork(a="localhost", b="127.1", c="0x7f000001", d="0", e="::1", f="2130706433")
    fetcher = Fetcher(limits(inside), network)
    for name in "abcdef":  # resolvers take notations that we do not
        assert refusal(fetcher, f"http://{name}.example:{inside.port}/").message == UNFETCHED
    assert (inside.num_connections, network.connected) == (0, [])


@table("answer", [["127.0.0.1", PUBLIC], [PUBLIC, "127.0.0.1"], [PUBLIC, "::ffff:127.0.0.1"], [PUBLIC] * 9 + ["::1"]])
def test_not_by_a_name_with_a_public_address_as_well(answer: list[str], inside: Host) -> None:
    network = MadeUpNetwork({"a.example": [answer]}, {"127.0.0.1": inside.port, PUBLIC: inside.port})
    assert refusal(Fetcher(limits(inside), network), "http://a.example/").message == UNFETCHED
    assert (inside.num_connections, network.connected) == (0, [])


def test_not_by_a_resolver_that_changes_its_answer(inside: Host) -> None:
    with hosting(ok(b"from outside")) as outside:
        answers = [[PUBLIC], ["127.0.0.1"], ["127.0.0.1"]]
        network = MadeUpNetwork({"a.example": answers}, {PUBLIC: outside.port, "127.0.0.1": inside.port})
        fetcher = Fetcher(limits(inside), network)
        assert fetcher.begin("http://a.example/", NAME).run() == b"from outside"
        assert (network.resolved, network.connected) == (["a.example"], [PUBLIC])
        assert refusal(fetcher, "http://a.example/").message == UNFETCHED
    assert (inside.num_connections, network.connected) == (0, [PUBLIC])


def test_not_by_a_resolver_that_changes_its_answer_for_a_redirect(inside: Host) -> None:
    with hosting({"/": redirect("/again"), "": ok(png())}) as outside:
        network = MadeUpNetwork(
            {"a.example": [[PUBLIC], ["127.0.0.1"]]}, {PUBLIC: outside.port, "127.0.0.1": inside.port}
        )
        assert refusal(Fetcher(limits(inside), network), "http://a.example/").message == UNFETCHED
        assert [head.split()[1] for head in outside.heads] == ["/"]
    assert (inside.num_connections, network.connected) == (0, [PUBLIC])


@table("status", [301, 302, 303, 307, 308])
def test_not_by_a_redirect_of_any_status(status: int, inside: Host) -> None:
    assert_not_redirected(f"http://127.0.0.1:{inside.port}/", inside, status)


@table("form", [*FORMS, "http://inside.example:PORT/", "//inside.example:PORT/", *(ODD)])
def test_not_by_a_redirect_to_any_form(form: str, inside: Host) -> None:
    assert_not_redirected(form.replace("PORT", str(inside.port)), inside, 302)


def assert_not_redirected(location: str, inside: Host, status: int) -> None:
    """The host outside is asked, perhaps once more for a path of its own, and nobody else."""
    with hosting({"/": redirect(location, status), "": redirect("")}) as outside:
        names = {"a.example": [[PUBLIC]], "inside.example": [["127.0.0.1"]], "localhost": [["127.0.0.1"]]}
        network = MadeUpNetwork(names, {PUBLIC: outside.port, "127.0.0.1": inside.port})
        fault = refusal(Fetcher(limits(inside), network), "http://a.example/")
        assert fault.message == UNFETCHED  # and not what is wrong with the new address: the client did not write it
        assert outside.num_connections >= 1
    assert inside.num_connections == 0
    assert set(network.connected) == {PUBLIC}


def test_not_by_a_redirect_to_a_host_that_is_not_allowed() -> None:
    with hosting({"": redirect("http://b.example/")}) as host:
        network = MadeUpNetwork({"a.example": [[PUBLIC]], "b.example": [[PUBLIC]]}, {PUBLIC: host.port})
        fetcher = Fetcher(PictureLimits(timeout_s=30, allowed_hosts=("a.example",)), network)
        assert refusal(fetcher, "http://a.example/").message == UNFETCHED
        assert (len(host.heads), network.resolved) == (1, ["a.example"])


@table("url", ["http://b.example/", "http://a.example:22/", "https://a.example.b.example/", "http://xa.example/"])
def test_hosts_and_ports_that_are_not_on_the_list_are_not_even_resolved(url: str) -> None:
    network = MadeUpNetwork({})
    fault = refusal(Fetcher(PictureLimits(allowed_hosts=("a.example",)), network), url)
    assert "must be at a host that the operator allows (--allow-image-hosts)" in fault.message
    assert (fault.problem, network.resolved) == ("address", [])


def test_without_the_rule_the_host_would_be_reached(inside: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "is_public", lambda address: True)
    fetcher = Fetcher(limits(inside), WatchedNetwork(a="localhost"))
    for url in (f"http://127.0.0.1:{inside.port}/", f"http://a.example:{inside.port}/"):
        assert fetcher.begin(url, NAME).run() == png()
    assert inside.num_connections == 2
