"""The real dialects for a model that is called `fake`, as tests of the server put them behind it."""

from __future__ import annotations

from dragoman.server.dialects.chat import ChatDialect, ChatOptions
from dragoman.server.dialects.completions import CompletionsDialect, CompletionsOptions
from dragoman.server.dialects.lmi import LmiDialect, LmiOptions
from dragoman.server.dialects.openai_common import ServedNames
from dragoman.server.dialects.text import TextDialect
from dragoman.server.dialects.tgi import TgiDialect
from dragoman.server.registry import DialectSet
from dragoman.types import Limits


def real_dialects() -> DialectSet:
    """Every dialect with its defaults, serving the name `fake`."""
    return DialectSet(
        lmi=LmiDialect(LmiOptions()),
        tgi=TgiDialect(Limits()),
        chat_v1=ChatDialect(ChatOptions("v1", names=ServedNames("fake"))),
        chat_v3=ChatDialect(ChatOptions("v3", names=ServedNames("fake"))),
        chat_invocations=ChatDialect(ChatOptions("invocations", names=ServedNames("fake"))),
        completions_v1=CompletionsDialect(CompletionsOptions("v1", names=ServedNames("fake"))),
        completions_v3=CompletionsDialect(CompletionsOptions("v3", names=ServedNames("fake"))),
        completions_invocations=CompletionsDialect(CompletionsOptions("lmi", names=ServedNames("fake"))),
        text=TextDialect(),
    )
