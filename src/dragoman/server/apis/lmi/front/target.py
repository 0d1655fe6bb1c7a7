"""The model that a call through SageMaker's runtime targets: `X-Amzn-SageMaker-Target-Model`, loaded when it is asked for.

On the event loop. Source: SageMaker's multi-model endpoints; the value is an archive's path below the models' prefix.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from dragoman.server.api import HttpCall
from dragoman.server.operations import Server
from dragoman.server.registry import PLACEHOLDER_MODELS, ServedModel

TARGET_MODEL = "x-amzn-sagemaker-target-model"


def target_of(http: HttpCall) -> str:
    """The name of the targeted model, "" if there is none."""
    return http.headers.get(TARGET_MODEL, "").lstrip("/").removesuffix(".tar.gz")


def borrow_target(http: HttpCall, server: Server) -> AbstractAsyncContextManager[ServedModel] | None:
    """The targeted model while the call runs; None if it targets none, or just the default one."""
    name = target_of(http)
    is_default = name in PLACEHOLDER_MODELS and server.models.get(name) is None
    return None if server.hosting is None or is_default else server.hosting.get_or_load(name)
