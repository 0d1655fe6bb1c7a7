"""The real dialects for a model that is called `fake`, as tests of the server put them behind it."""

from __future__ import annotations

from dragoman.server.apis.lmi.dialect import LmiDialect, LmiOptions
from dragoman.server.apis.openai_wire.chat.dialect import ChatDialect, ChatOptions
from dragoman.server.apis.openai_wire.common import ServedNames
from dragoman.server.apis.openai_wire.completions.dialect import CompletionsDialect, CompletionsOptions
from dragoman.server.apis.text.dialect import TextDialect
from dragoman.server.apis.tgi.dialect import TgiDialect
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
