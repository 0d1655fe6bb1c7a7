"""The errors a request can meet, in neutral words. Each dialect maps `kind` to its own status and body.

Messages are one line and name the parameter, the value and what is allowed.
"""

from __future__ import annotations

from copy import copy
from types import TracebackType
from typing import Any, ClassVar, Self


class ServerError(Exception):
    """Base of everything that is answered to a client. `kind` is the key of every dialect's error table.

    `names_parameter` False: what `param` names is the client's own word, not one of our parameters.
    """

    kind: ClassVar[str] = "server_error"
    names_parameter = True

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = " ".join(message.split())  # one line, always: LMI puts it in a reason phrase, clients in a log
        self.param = param

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and other processes get the same error, whatever its class holds."""
        return _restored, (type(self), self.args, self.__dict__)

    def of(self, label: str) -> Self:
        """The same error, naming its request in a call with several prompts."""
        twin = copy(self)
        twin.message = f"{self.message} ({label})"
        twin.args = (twin.message,)
        return twin


def _restored(kind: type[ServerError], args: tuple[Any, ...], attributes: dict[str, Any]) -> ServerError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class InvalidRequest(ServerError):
    kind = "invalid_request"


class InvalidPayload(InvalidRequest):
    """The body, or one of its structural fields, is malformed or missing."""

    kind = "invalid_payload"


class UnsupportedCoding(InvalidPayload):
    """The body has an unsupported coding; `taken`: the supported ones, in the form of HTTP's header."""

    def __init__(self, message: str, taken: str = "") -> None:
        super().__init__(message)
        self.taken = taken


class InvalidParameter(InvalidRequest):
    kind = "invalid_parameter"


class UnsupportedFeature(InvalidRequest):
    """A legal request for something this model or engine cannot do."""

    kind = "unsupported"


class TextOnly(UnsupportedFeature):
    """A picture for a model that only takes text; of the same kind, but some APIs have their own text for it."""


class NotFound(ServerError):
    kind = "not_found"


class UnknownModel(NotFound):
    """Of the same kind, but the models directory may have it by now."""


class Conflict(ServerError):
    kind = "conflict"


class NoMemory(ServerError):
    kind = "no_memory"


class UnknownPath(ServerError):
    kind = "unknown_path"


class WrongMethod(ServerError):
    """The route of this path answers to other methods: `allow`, as HTTP's header lists them."""

    kind = "wrong_method"

    def __init__(self, message: str, *, param: str | None = None, allow: str = "") -> None:
        super().__init__(message, param=param)
        self.allow = allow


class Unauthorized(ServerError):
    kind = "unauthorized"


class BadSignature(Unauthorized):
    """An AWS client's signature is wrong; of the same kind, but AWS clients know another name for it."""


class Forbidden(ServerError):
    kind = "forbidden"


class TooLarge(ServerError):
    kind = "too_large"


class Overloaded(ServerError):
    """The server cannot take the request now. `retry_after_s` is a hint for the client."""

    kind = "overloaded"

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int = 1) -> None:
        super().__init__(message, param=param)
        self.retry_after_s = retry_after_s


class Unavailable(Overloaded):
    """The server takes no requests now: it is loading or shutting down."""

    kind = "unavailable"


class NotLoaded(Unavailable):
    """The model must be loaded first, by a generating call. `name`: its owner's name for it."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Model {name} is not loaded; a call that generates with it loads it", param="model")
        self.name = name


class QueueTimeout(Overloaded):
    """The request waited longer than the operator allows."""


class RateLimited(Overloaded):
    kind = "rate_limited"


class RequestTimeout(ServerError):
    kind = "timeout"


class DeadlineTooShort(RequestTimeout):
    """The time cannot suffice, so the request was not begun. `needed_s`: the least seconds until its first token."""

    def __init__(self, message: str, *, param: str | None = None, needed_s: float = 0.0) -> None:
        super().__init__(message, param=param)
        self.needed_s = needed_s


class Cancelled(ServerError):
    """The request was aborted: the client left, or the server is shutting down."""

    kind = "cancelled"


class CapacityError(ServerError):
    """The request can never fit; the numbers, in tokens, are for dialects with their own text."""

    kind = "capacity"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        num_prompt_tokens: int | None = None,
        max_tokens: int | None = None,
        max_model_len: int | None = None,
    ) -> None:
        super().__init__(message, param=param)
        self.num_prompt_tokens = num_prompt_tokens
        self.max_tokens = max_tokens
        self.max_model_len = max_model_len


class EngineFailed(ServerError):
    kind = "engine_failed"


class EngineDead(ServerError):
    """The engine has stopped: its requests fail, and later ones too unless another engine replaces it."""

    kind = "engine_dead"


class HookError(ServerError):
    """The operator's input or output formatter raised."""

    kind = "hook_error"


ALL_KINDS: tuple[str, ...] = tuple(
    cls.kind
    for cls in (
        InvalidRequest, InvalidPayload, InvalidParameter, UnsupportedFeature, NotFound, Conflict, NoMemory,
        UnknownPath, WrongMethod, Unauthorized, Forbidden, TooLarge, Overloaded, Unavailable, RateLimited, RequestTimeout,
        Cancelled, CapacityError, EngineFailed, EngineDead, HookError, ServerError,
    )
)  # fmt: skip


class ModelError(ValueError):
    """The model directory cannot be served; one line names the file, the key, and what is supported."""

    def __init__(self, message: str) -> None:
        line = " ".join(message.splitlines())
        super().__init__(line if len(line) <= _MOST_LINE else f"{line[: _MOST_LINE - 3]}...")


_MOST_LINE = 3000  # characters


class Panicked(Exception):
    """A library written in Rust stopped in the middle; only its present work is lost."""


class CatchPanics:
    """A cheap context manager that raises `Panicked` in place of a panic, on any thread.

    Python sees a panic as a BaseException, like the end of the process; it would pass everything that catches failures.
    """

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None and kind.__module__ == "pyo3_runtime":  # each library has its own type of panics
            raise Panicked(" ".join(str(error).split())) from error


CATCH_PANICS = CatchPanics()


def failure_of(error: BaseException) -> Exception:
    """The failure of a request: `error`, or `Panicked` for a panic. Raises: `error` if it ends a task or the process."""
    try:
        with CATCH_PANICS:
            raise error
    except Exception as failure:
        return failure


def how_to_install(extra: str) -> str:
    """The command for an extra. No package index has dragoman: it comes from its clone, or from its wheel file."""
    return f"pip install '.[{extra}]' in dragoman's clone, or pip install 'WHEEL[{extra}]' with its wheel file"
