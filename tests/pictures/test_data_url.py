"""`data:` URLs as clients write them, and everything else in their place."""

from __future__ import annotations

import base64
import tracemalloc
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.pictures.limits import PictureFault, PictureLimits
from dragoman.pictures.loader import read_data_url
from tests.support.tables import table

NAME = "messages[0].content[1].image_url.url"
DATA = bytes(range(256)) + b"\xfb\xff\xfe"  # whose base64 has + and /, and padding
BASE64 = base64.b64encode(DATA).decode()


def read(url: str, limits: PictureLimits | None = None) -> bytes:
    return read_data_url(url, limits or PictureLimits(), NAME)


def refused(url: str, limits: PictureLimits | None = None) -> PictureFault:
    with pytest.raises(PictureFault) as caught:
        read(url, limits)
    assert caught.value.message.startswith(f"{NAME} must ")
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 250
    return caught.value


@table(
    "head",
    [
        "data:image/png;base64", "DATA:IMAGE/PNG;BASE64", "data:image/jpg;base64", "data:image/svg+xml;base64",
        "data:image/*;base64", "data:image/png;charset=utf-8;base64", "data:image/png;name=a b.png;base64",
        "data:image/vnd.microsoft.icon;base64", "data: image/png; base64 ",
    ],
)  # fmt: skip
def test_heads_of_all_kinds_of_images_are_taken(head: str) -> None:
    assert read(f"{head},{BASE64}") == DATA


@table(
    "text",
    [
        BASE64, f"\n{BASE64}\n ", BASE64.rstrip("="), BASE64 + "==", quote(BASE64, safe=""), quote(BASE64 + "\n"),
        "\r\n".join(BASE64[at : at + 76] for at in range(0, len(BASE64), 76)), base64.urlsafe_b64encode(DATA).decode(),
        base64.urlsafe_b64encode(DATA).decode().rstrip("="), " ".join(BASE64),
    ],
)  # fmt: skip
def test_base64_is_taken_as_clients_write_it(text: str) -> None:
    assert read(f"data:image/png;base64,{text}") == DATA


@table(
    "head",
    [
        "", "data:", "data:;base64", "data:image/png", "data:text/plain;base64", "data:application/octet-stream;base64",
        "data:image", "data:image/;base64", "data:image/png;base64;x=y", "data:image/png;utf8", "data:image/png,base64",
        "xdata:image/png;base64", "data:video/mp4;base64", "data:image/png\n;text;", "https://a.example/",
    ],
)  # fmt: skip
def test_other_heads_of_data_urls_are_refused(head: str) -> None:
    fault = refused(f"{head},{BASE64}")
    assert fault.problem == "address"
    assert "data:image/...;base64,..." in fault.message


def test_a_head_alone_is_refused() -> None:
    assert refused("data:image/png;base64").problem == "address"


@table(
    "text",
    [
        "not base64!", "a", "AAAAA", "AA=A", "=AAA", "AAAA,AAAA", "<svg></svg>", "AAA\0", "ä", "\ud800", "%", "%zz",
        "%FF", "",
        "=", "===", " \n",
    ],
)  # fmt: skip
def test_text_that_is_not_base64_is_refused(text: str) -> None:
    assert refused(f"data:image/png;base64,{text}").problem == "encoding"


def test_the_error_repeats_only_the_beginning_of_a_long_text() -> None:
    assert refused("data:image/png;base64," + "!" * 100_000).message.endswith('!..."')
    assert refused("!" * 100_000).message.endswith('!..."')


def test_the_limit_counts_decoded_bytes() -> None:
    limits = PictureLimits(max_bytes=1000)
    for text in (base64.b64encode(bytes(1000)).decode(), quote(base64.b64encode(bytes(1000)).decode(), safe="")):
        assert read(f"data:image/png;base64,{text}", limits) == bytes(1000)
    fault = refused("data:image/png;base64," + base64.b64encode(bytes(1001)).decode(), limits)
    assert (fault.problem, fault.message) == ("size", f"{NAME} must be an image of at most 1000 bytes, got more")
    mebibytes = refused("data:image/png;base64," + "A" * 3_000_000, PictureLimits(max_bytes=2 * 1024 * 1024))
    assert mebibytes.message == f"{NAME} must be an image of at most 2 MiB, got more"


@pytest.mark.parametrize("text", ["%41" * 400_000, "%2B" * 400_000, "A" * 1_200_000, " A" * 600_000, "%" * 1_200_000])
def test_reading_takes_a_few_times_the_texts_memory(text: str) -> None:
    url = f"data:image/png;base64,{text}"
    tracemalloc.start()
    try:
        read_data_url(url, PictureLimits(), NAME)
    except PictureFault as fault:
        assert fault.problem == "encoding"  # noqa: PT017 (either is right)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 3.1 * len(url)


def test_much_more_white_space_than_data_is_too_large() -> None:
    limits = PictureLimits(max_bytes=60_000)
    assert read(f"data:image/png;base64,{' ' * 79_000}{BASE64}", limits) == DATA
    assert refused(f"data:image/png;base64,{BASE64}{' ' * 200_000}", limits).problem == "size"


@given(st.text() | st.text(alphabet="AB+/-_= \n%2,;", max_size=60).map("data:image/png;base64,{}".format))
def test_any_text_gives_bytes_or_a_fault(url: str) -> None:
    try:
        assert read(url)
    except PictureFault as fault:
        assert fault.param == NAME  # noqa: PT017 (either is right)


@given(st.binary(min_size=1))
def test_all_bytes_arrive(data: bytes) -> None:
    assert read("data:image/png;base64," + base64.b64encode(data).decode()) == data
