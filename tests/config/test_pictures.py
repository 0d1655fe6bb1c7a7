"""The options of pictures: hosts, limits, and the names other servers use."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.cli.arguments import read_arguments
from dragoman.compose import picture_limits
from dragoman.config.kinds import Hosts, ImageLimit
from dragoman.config.resolve import Config, ConfigError, resolve
from dragoman.pictures import PictureLimits
from dragoman.pictures.places import HostRule
from tests.support.tables import table
from tests.support.tiers import examples


def resolved(tmp_path: Path, line: str = "", properties: str = "", environ: dict[str, str] | None = None) -> Config:
    (tmp_path / "serving.properties").write_text(properties, encoding="utf-8")
    return resolve(read_arguments(line.split()).givens, environ or {}, tmp_path)


def test_the_defaults_are_those_of_the_loader(tmp_path: Path) -> None:
    assert picture_limits(resolved(tmp_path)) == PictureLimits()
    assert resolved(tmp_path).pictures.limit_mm_per_prompt is None


def test_every_limit_reaches_the_loader(tmp_path: Path) -> None:
    line = (
        "--allow-image-hosts A.example,*.b.example:81 --max-image-mb 3 --max-image-pixels 7 --image-fetch-timeout-s 1.5"
    )
    assert picture_limits(resolved(tmp_path, line)) == PictureLimits(
        max_bytes=3 * 1024 * 1024, max_pixels=7, timeout_s=1.5, allowed_hosts=("a.example", "*.b.example:81")
    )


@table(
    ("properties", "environ", "name", "value"),
    [
        ("option.allowed_media_domains=a.example,b.example", {}, "allow_image_hosts", ("a.example", "b.example")),
        ('option.allowed_media_domains=["a.example", "b.example"]', {}, "allow_image_hosts", ("a.example",
        "b.example")),
        ("", {"OPTION_ALLOW_IMAGE_HOSTS": "*"}, "allow_image_hosts", ("*",)),
        ("", {"VLLM_IMAGE_FETCH_TIMEOUT": "9"}, "image_fetch_timeout_s", 9.0),
        ("option.limit_mm_per_prompt=image=2,video=1", {}, "limit_mm_per_prompt", 2),
        ('option.limit_mm_per_prompt={"image": 0}', {}, "limit_mm_per_prompt", 0),
        ('option.mm_processor_kwargs={"max_pixels": 9}', {}, "mm_processor_kwargs", '{"max_pixels": 9}'),
        ("option.mm_processor_kwargs=none", {}, "mm_processor_kwargs", None),
        ("", {"OPTION_LIMIT_MM_PER_PROMPT": '{"image": {"count": 3, "width": 512}}'}, "limit_mm_per_prompt", 3),
    ],
)  # fmt: skip
def test_the_names_and_forms_of_other_servers_act(
    tmp_path: Path, properties: str, environ: dict[str, str], name: str, value: object
) -> None:
    assert getattr(resolved(tmp_path, "", properties, environ).pictures, name) == value


@table(
    "properties",
    [
        "option.allowed_media_domains=[1]", 'option.allowed_media_domains={"a": 1}', "option.allowed_media_domains=[",
        "option.allow_image_hosts=https://a.example", "option.limit_mm_per_prompt=image=-1",
        "option.mm_processor_kwargs=[1]",
        "option.max_image_mb=0",
        "option.max_image_pixels=200000000", "option.image_fetch_timeout_s=0",
    ],
)  # fmt: skip
def test_other_values_stop_the_start(tmp_path: Path, properties: str) -> None:
    with pytest.raises(ConfigError, match="must be "):
        resolved(tmp_path, "", properties)


def test_a_timeout_without_hosts_is_noted(tmp_path: Path) -> None:
    [notice] = resolved(tmp_path, "--image-fetch-timeout-s 3").notices
    assert "--image-fetch-timeout-s=3.0 (command line): no effect here; nothing is fetched" in notice
    assert resolved(tmp_path, "--image-fetch-timeout-s 3 --allow-image-hosts *").notices == ()


@table(
    ("text", "limit"),
    [
        ("image=2", 2), ("image=0", 0), ("video=1, image=3", 3), ("video=1", None), ("2", 2), ("none", None), ("{}",
        None),
        ("", None), ('{"image": 4, "audio": 0}',
        4), ('{"image": {"count": 5}, "video": {"count": 1, "num_frames": 9}}', 5),
        ('{"image": {"width": 9}}', None),
    ],
)  # fmt: skip
def test_limits_of_images(text: str, limit: int | None) -> None:
    assert ImageLimit().parse(text) == limit


@table(
    "text",
    [
        "image", "image=", "image=x", "image=-1", "image=1.5", "image=1,image=2", "images=1", "image=1,sound=1", "{",
        '{"image": true}',
        '{"image": "1"}', '{"image": -1}', '{"image": null}', '{"image": 1, "video": "x"}', '{"image": {"count": -1}}',
        "[1]", "-1", ",",
        '{"a":' * 100_000,
    ],
)  # fmt: skip
def test_other_limits_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        ImageLimit().parse(text)


@table(
    "text",
    [
        "a.example", "*", "*.a.example", "a.example:81", "*:81", "1.1.1.1", "1.1.1.1:81", "[2606::1]", "[2606::1]:81",
        "localhost",
        "a_b.example", "xn--bcher-kva.example",
    ],
)  # fmt: skip
def test_hosts_of_every_form_are_accepted(text: str) -> None:
    assert Hosts().parse(f" {text.upper()}, {text} b.example") == (text, "b.example")
    assert HostRule.read(text)


@table(
    "text",
    [
        "", ",", "https://a.example", "a.example/b", "a..example", ".a", "a.", "-a.example", "**", "*a.example", "a.*",
        "a.*.example",
        "127.1", "0x", "a.0x1f", "1.1.1.256", "01.1.1.1", "[::1", "[::a", "[fe80::1%eth0]", "[a]", "2606::1", "a:0",
        "a:65536", "a:b",
        ":80", "bücher.example",
        "*.", "*.1.1.1.1", "a@b.example", f"{'a' * 64}.example", "a.example?", "*.[::1]",
    ],
)  # fmt: skip
def test_other_hosts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        Hosts().parse(text)


@settings(max_examples=examples(500))
@given(st.text(max_size=30) | st.text(alphabet="a1.*:[]0x-", max_size=12))
def test_every_accepted_host_is_a_rule(text: str) -> None:
    try:
        words = Hosts().parse(text)
    except ValueError:
        return
    assert all(HostRule.read(word) for word in words)
