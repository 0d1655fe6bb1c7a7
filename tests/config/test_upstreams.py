"""The options of the engine `remote`."""

from __future__ import annotations

import pytest

from dragoman.config.kinds import Urls
from dragoman.config.resolve import Config, demo_model_dir, resolve
from dragoman.config.sources import Given
from tests.support.tables import table


def resolved(environ: dict[str, str] | None = None, **options: str) -> Config:
    given = [Given(f"--{name}", f"option.{name}", text, "command line") for name, text in options.items()]
    return resolve(given, environ or {}, demo_model_dir())


def test_servers_are_listed_with_commas_or_blanks() -> None:
    assert Urls().parse("http://a:8000/, https://b/v1/") == ("http://a:8000", "https://b/v1")
    assert resolved(engine="remote", upstream="http://a,http://[::1]:9").upstream.upstream == (
        "http://a",
        "http://[::1]:9",
    )


@table(
    "text",
    [
        "",
        " , ",
        "a:8000",
        "ftp://a",
        "http://",
        "http://a:99999",
        "http://a:x",
        "http://a?b",
        "http://u:p@a",
        "http://a,http://a/",
    ],
)
def test_malformed_addresses_are_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the caller words the message
        Urls().parse(text)


def test_the_key_comes_from_the_environment_and_stays_hidden() -> None:
    config = resolved({"DRAGOMAN_UPSTREAM_API_KEY": "hush"}, engine="remote", upstream="http://a")
    assert config.upstream.upstream_api_key == "hush"
    assert "hush" not in repr(config)


def test_options_of_the_other_engine_are_noted_without_effect() -> None:
    far = resolved(engine="remote", upstream="http://a", dtype="f32", kv_cache_gb="2", max_num_seqs="9")
    assert [notice.split("=")[0] for notice in far.notices] == ["--dtype", "--kv_cache_gb"]
    near = resolved(upstream="http://a")
    assert ["option.engine=remote" in notice for notice in near.notices] == [True]
