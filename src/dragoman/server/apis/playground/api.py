"""The playground's page and its files. They need no key; what the page asks for may need one."""

from __future__ import annotations

from functools import partial

from dragoman.server.api import TEXT_MEDIA_TYPE, HttpCall, Reply
from dragoman.server.apis.playground.assets import INDEX, MEDIA_TYPES, reply_of
from dragoman.server.describe.answers import Answer, Answers
from dragoman.server.describe.components import header, parameter
from dragoman.server.describe.json_schema import TEXT
from dragoman.server.operations import AnswerOperation, Api, Server
from dragoman.server.security.scopes import Scope

NAME = "playground"
PATH = "/playground"


async def page(http: HttpCall, server: Server) -> Reply:
    return reply_of(INDEX, http)


async def file(http: HttpCall, server: Server) -> Reply:
    return reply_of(http.path_params["file"], http)


_UNCHANGED: Answers = {304: Answer("what `If-None-Match` names is still right", headers=("ETag",))}
_get = partial(AnswerOperation, method="GET", tag="Playground", scope=Scope.OPEN)

API = Api(
    name=NAME,
    title=NAME,
    needs_engine=False,
    operations=(
        _get(
            path=PATH,
            summary="A page to try the models in a browser",
            description="Browsers that ask for `/` are sent here.",
            parameters=("If-None-Match",),
            answers={200: Answer("the page", {MEDIA_TYPES["html"]: TEXT}, ("ETag",)), **_UNCHANGED},
            answer=page,
        ),
        _get(
            path=f"{PATH}/{{file}}",
            summary="A file of that page",
            parameters=("file", "If-None-Match"),
            answers={
                200: Answer("the file", dict.fromkeys(MEDIA_TYPES.values(), TEXT), ("ETag",)),
                404: Answer("there is no such file", {TEXT_MEDIA_TYPE: TEXT}),
                **_UNCHANGED,
            },
            answer=file,
        ),
    ),
    parameters={
        "file": parameter("path", "file", "the file's name", TEXT),
        "If-None-Match": parameter("header", "If-None-Match", "what the client has: its `ETag`", TEXT),
    },
    headers={"ETag": header("tells this version of the file from others")},
)
