"""Which addresses count as public, and how addresses may be written."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.pictures.addresses import is_public
from dragoman.pictures.places import BadPlace, HostRule, Place, read_place
from tests.support.tables import table


def words(text: str) -> list[str]:
    return text.split()


# First and last of each net that IANA's registries of special-purpose addresses list, and the metadata services of clouds.
NOT_PUBLIC = words("""
0.0.0.0 0.255.255.255 10.0.0.0 10.255.255.255 100.64.0.0 100.127.255.255 100.100.100.200 127.0.0.0 127.0.0.1
127.255.255.255 169.254.0.0 169.254.169.254 169.254.170.2 169.254.255.255 172.16.0.0 172.31.255.255 192.0.0.0 192.0.0.192
192.0.0.255 192.0.2.0 192.0.2.255 192.88.99.0 192.88.99.255 192.168.0.0 192.168.255.255 198.18.0.0 198.19.255.255
198.51.100.0 198.51.100.255 203.0.113.0 203.0.113.255 224.0.0.0 239.255.255.255 240.0.0.0 255.255.255.255 168.63.129.16
:: ::1 ::7f00:1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::ffff:93.184.216.34 ::ffff:0:127.0.0.1
::127.0.0.1 64:ff9b::127.0.0.1 64:ff9b::10.1.2.3 64:ff9b::169.254.169.254 64:ff9b:1::93.184.216.34 100::1 100:0:0:1::1
2001::1 2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:2::1 2001:10::1 2001:20::1 2001:1ff:ffff::1 2001:db8::1
2001:db8:ffff:ffff:: 2002:7f00:1:: 2002:a9fe:a9fe:: 2002:5db8:d822:: 3fff::1 3fff:fff:: 5f00::1 fc00::1 fd00:ec2::254
fd20:ce::254 fdff::1 fe80::1 fe80::1%eth0 fe80::a9fe:a9fe febf::1 fec0::1 ff02::1 ff0e::1 4000::1 1fff::1
2606:2800:220:1:248:1893:25c8:1946%1
""")

PUBLIC = words("""
1.1.1.1 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0 169.253.255.255 169.255.0.0
172.15.255.255 172.32.0.0 192.0.1.0 192.0.3.0 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 203.0.112.255
203.0.114.0 223.255.255.255 168.63.129.15 93.184.216.34 2606:2800:220:1:248:1893:25c8:1946 2001:200::1 2001:4860:4860::8888
2003::1 2a00:1450:4001::1 3ffe::1 64:ff9b::93.184.216.34
""")


@table("text", NOT_PUBLIC)
def test_private_and_reserved_addresses_are_not_public(text: str) -> None:
    assert not is_public(ip_address(text))


@table("text", PUBLIC)
def test_an_address_of_the_internet_is_public(text: str) -> None:
    assert is_public(ip_address(text))


@given(st.ip_addresses())
def test_addresses_that_python_calls_private_are_not_public(address: object) -> None:
    there = ip_address(str(address))
    if is_public(there) and not str(there).startswith("64:ff9b::"):
        kinds = ("is_private", "is_loopback", "is_link_local", "is_multicast", "is_reserved", "is_unspecified")
        assert [kind for kind in kinds if getattr(there, kind)] == []


@table(
    ("url", "place"),
    [
        ("http://a.example", Place("http", "a.example", 80, "/")),
        ("HTTPS://A.Example./B?c=d#e", Place("https", "a.example", 443, "/B?c=d")),
        ("http://a.example:8080?x", Place("http", "a.example", 8080, "/?x")),
        (
            "https://xn--bcher-kva.example/ä/%2e%2e/~x",
            Place("https", "xn--bcher-kva.example", 443, "/%C3%A4/%2e%2e/~x"),
        ),
        ("http://93.184.216.34/", Place("http", "93.184.216.34", 80, "/")),
        ("http://93.184.216.34./", Place("http", "93.184.216.34", 80, "/")),
        ("http://[2606:2800::0:1]:443/", Place("http", "2606:2800::1", 443, "/")),
        ("http://under_score.example/a@b:c", Place("http", "under_score.example", 80, "/a@b:c")),
        ("http://a.example#@b.example/", Place("http", "a.example", 80, "/")),
    ],
)
def test_an_address_is_read(url: str, place: Place) -> None:
    assert read_place(url) == place
    assert read_place(place.url) == place


ODD = words(r"""
file:///etc/passwd ftp://a.example/ gopher://a.example/ data:text/plain,a jar:http://a.example!/ javascript:alert(1)
a.example //a.example/ /etc/passwd http:a.example http:/a.example http:///a.example http:// https:// http://:80/ httpſ://a.example/
http://user@a.example/ http://user:password@a.example/ http://a.example@127.0.0.1/
http://a.example:80@127.0.0.1/ http://a.example\@127.0.0.1/ http:\\a.example http://a.example\.b.example/
http://127.1/ http://127.0.1/ http://2130706433/ http://0x7f000001/ http://0x7f.0.0.1/ http://0x7f.1/ http://017700000001/
http://0177.0.0.1/ http://127.0.0.01/ http://127.0.0.0x1/ http://127.0.0.1.1/ http://256.1.1.1/ http://0/ http://1.2.3/
http://127.0.0.1../ http://127.0.0.%31/ http://%6c%6f%63%61%6c%68%6f%73%74/ http://a%2eexample/ http://a.example%00.b.example/
http://１２７.0.0.1/ http://127。0。0。1/ http://①②⑦.0.0.1/ http://ⓛocalhost/ http://bücher.example/ http://loсalhost/
http://[::1/ http://::1/ http://[]/ http://[fe80::1%eth0]/ http://[fe80::1%25eth0]/ http://[::ffff:127.1]/ http://[127.0.0.1]/
http://[v1.a]/ http://[::1].example/ http://[::1]a/ http://a.example:0/ http://a.example:65536/
http://a.example:999999/ http://a.example:80a/ http://a.example:-1/ http://a.example:８０/ http://a..example/ http://.example/
http://-a.example/ http://a-.example/ http://*/ http://a,b/ http://a;b/ http://a'b/ http://a&b/ http://a*b/ http://a!b/
""")


@table(
    "url",
    [
        *ODD, "", "http://a.example:/", "http://a.example /", "http://a.example/a b", " http://a.example/", "http://a.example/\n",
        "http://a.example/\r\nHost: b", "http://a\t.example/", "http://a.example/\0", "http://a.example/\x7f", "http://\xa0a/",
        "http://a.example/\ud800", f"http://{'a' * 64}.example/", f"http://{'a.' * 130}example/",
        "http://a.example/" + "a" * 9000,
    ],
)  # fmt: skip
def test_an_address_that_could_be_read_in_two_ways_is_refused(url: str) -> None:
    with pytest.raises(BadPlace, match=r"^must "):
        read_place(url)


@given(st.text(max_size=40) | st.text(alphabet="htps:/[]@.#?%\\127af0x", max_size=40).map("http://{}".format))
def test_any_text_is_refused_or_read_the_same_when_written_down(url: str) -> None:
    try:
        place = read_place(url)
    except BadPlace:
        return
    assert read_place(place.url) == place


@table(
    ("rule", "allowed", "refused"),
    [
        ("a.example", ["http://a.example", "https://A.EXAMPLE./x"], ["http://b.a.example", "http://a.example:8080", "http://aa.example"]),
        ("a.example:8080", ["http://a.example:8080", "https://a.example:8080"], ["http://a.example", "https://a.example"]),
        ("*.example", ["http://a.example", "http://a.b.example"], ["http://example", "http://aexample", "http://a.example.net"]),
        ("*", ["http://a.example", "https://1.1.1.1"], ["http://a.example:81", "https://a.example:80"]),
        ("*:81", ["http://a.example:81"], ["http://a.example"]),
        ("*.a.example:81", ["http://b.a.example:81"], ["http://b.a.example", "http://a.example:81"]),
        ("1.1.1.1", ["http://1.1.1.1"], ["http://1.1.1.2", "http://1.1.1.1:8"]),
        ("[2606::0:1]", ["http://[2606::1]"], ["http://[2606::2]"]),
        ("[2606::1]:81", ["http://[2606:0::1]:81"], ["http://[2606::1]"]),
    ],
)  # fmt: skip
def test_the_operators_list(rule: str, allowed: list[str], refused: list[str]) -> None:
    assert all(HostRule.read(rule).allows(read_place(url)) for url in allowed)
    assert not any(HostRule.read(rule).allows(read_place(url)) for url in refused)
