"""Errors cross processes (nodes, Ray) and are copied for the prompts of a call: they come out as they went in."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

from dragoman.config.resolve import ConfigError
from dragoman.engine.factory import EngineOptionError
from dragoman.errors import ServerError
from dragoman.pictures import PictureFault

OTHERS: dict[type[ServerError], tuple[Any, ...]] = {PictureFault: ("messages[0]", "size", "must be smaller")}


def kinds(base: type[ServerError] = ServerError) -> Iterator[type[ServerError]]:
    yield base
    for kind in base.__subclasses__():
        yield from kinds(kind)


def test_every_error_survives_pickling_and_copying() -> None:
    errors: list[Exception] = [kind(*OTHERS.get(kind, ("why",))) for kind in kinds()]
    errors += [ConfigError(["one", "two"]), EngineOptionError("threads", "must be fewer")]
    assert len(errors) > 25
    for error in errors:
        back = pickle.loads(pickle.dumps(error))
        assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))
        if isinstance(error, ServerError):
            labelled = error.of("prompt 2")
            assert (type(labelled), labelled.message) == (type(error), f"{error.message} (prompt 2)")
            assert {**vars(labelled), "message": ""} == {**vars(error), "message": ""}
