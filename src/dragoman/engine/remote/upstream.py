"""One upstream server and its open requests. On the event loop of its session."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import SimpleNamespace

import msgspec

from dragoman.engine.remote.profile import Profile
from dragoman.engine.remote.wire import (
    Choice,
    Chunk,
    EventReader,
    Model,
    Trace,
    chunk_error,
    chunks,
    client_error,
    error_text,
    models,
)
from dragoman.errors import how_to_install

try:
    import aiohttp
except ImportError as missing:  # pragma: no cover - the extra is part of the development environment
    raise ImportError(f"engine remote needs aiohttp: {how_to_install('remote')}") from missing

CONNECT_TIMEOUT_S = 5.0
CHECK_TIMEOUT_S = 5.0
RACE_S = 1.0  # a server that closes a connection later than this after a request did not close it as idle
_END = b"[DONE]"
_MAX_ERROR_BYTES = 65_536
_TROUBLE = (aiohttp.ClientError, TimeoutError, OSError)
_RESET = (aiohttp.ClientOSError, ConnectionResetError)


class UpstreamError(Exception):
    """An upstream did not answer a request; another one may.

    `is_unreachable`: it answers no request now. `is_failure`: perhaps it answers none.
    """

    def __init__(self, message: str, *, is_unreachable: bool = False, is_failure: bool = False) -> None:
        super().__init__(message)
        self.is_unreachable = is_unreachable
        self.is_failure = is_failure


class UpstreamBusy(UpstreamError):
    """The upstream takes no more requests now. `retry_after_s`: its own estimate."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


def new_session(api_key: str | None) -> aiohttp.ClientSession:
    """Connections to all upstreams of an engine, kept open between requests. Belongs to the running event loop."""
    headers = {"content-type": "application/json"}
    if api_key is not None:
        headers["authorization"] = f"Bearer {api_key}"
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
    noting = aiohttp.TraceConfig()
    noting.on_connection_reuseconn.append(_note_reuse)
    return aiohttp.ClientSession(connector=connector, headers=headers, auto_decompress=True, trace_configs=[noting])


@dataclass
class _Connection:
    """`is_reused`: it carried another request before."""

    is_reused: bool = False


async def _note_reuse(session: aiohttp.ClientSession, context: SimpleNamespace, params: object) -> None:
    connection = context.trace_request_ctx
    if isinstance(connection, _Connection):
        connection.is_reused = True


class Upstream:
    """A server at `url`, which ends with the API's prefix (`/v1`). `profile` None = not known yet.

    `is_known`: the profile holds for the current list of models. `problem`: the reason why it gets no requests, "" = it
    gets them. `doubt`: its last failure; until a probe succeeds other upstreams are preferred. `timeout_s`: the longest
    silence within an answer.
    """

    def __init__(self, url: str, timeout_s: float, profile: Profile | None = None) -> None:
        self.url = url
        self.profile = profile
        self.is_known = profile is not None
        self.problem = "" if profile is not None else "it has not answered yet"
        self.doubt = ""
        self.adapters = () if profile is None else profile.adapters
        self.num_outstanding = 0
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=timeout_s)
        self._session: aiohttp.ClientSession | None = None

    @property
    def is_healthy(self) -> bool:
        return not self.problem and not self.doubt

    def attach(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def models(self) -> list[Model]:
        timeout = aiohttp.ClientTimeout(total=CHECK_TIMEOUT_S)
        try:
            async with self._connected().get(f"{self.url}/models", timeout=timeout) as response:
                content = await response.read()
                if response.status != 200:
                    reason = error_text(content)
                    raise UpstreamError(f"GET {self.url}/models is answered {response.status}: {reason}")
                return models.decode(content).data
        except _TROUBLE as error:
            raise self.trouble(error) from error
        except msgspec.MsgspecError as error:
            raise UpstreamError(f"GET {self.url}/models is not a list of models: {error}") from error

    async def whole(self, body: bytes, trace: Trace) -> Chunk:
        """The answer to a request without a stream. Raises: UpstreamError, InvalidRequest, CapacityError."""
        self.num_outstanding += 1
        try:
            async with await self._post(body, trace) as response:
                await self._check(response)
                chunk = chunks.decode(await response.read())
        except _TROUBLE as error:
            raise self.trouble(error) from error
        except msgspec.MsgspecError as error:
            raise UpstreamError(f"{self.url} does not answer like OpenAI's completions API: {error}") from error
        finally:
            self.num_outstanding -= 1
        problem = chunk_error(chunk)
        if problem is not None:
            raise UpstreamError(f"{self.url} failed: {problem}")
        return chunk

    async def open(self, body: bytes, trace: Trace) -> Stream:
        """A stream whose first token has come; the caller closes it. Raises: as `whole`."""
        stream = Stream(self)
        try:
            stream.response = await self._post(body, trace)
            await self._check(stream.response)
            await stream.begin()
        except BaseException:
            stream.close()
            raise
        return stream

    async def _post(self, body: bytes, trace: Trace) -> aiohttp.ClientResponse:
        """The answer's head. Raises: UpstreamError.

        Servers close idle connections. A request on such a connection was not read and is sent again, until a
        connection is new. A server that closes a new connection without an answer, or any within an answer, has failed.
        """
        while True:
            connection, begin_s = _Connection(), time.monotonic()
            try:
                return await self._connected().post(
                    f"{self.url}/completions",
                    data=body,
                    timeout=self._timeout,
                    headers=trace.headers(),
                    trace_request_ctx=connection,
                )
            except _TROUBLE as error:
                is_race = connection.is_reused and time.monotonic() - begin_s < RACE_S and _is_unanswered(error)
                if not is_race:
                    raise self.trouble(error) from error

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        status = response.status
        if status == 200:
            return
        content = await response.content.read(_MAX_ERROR_BYTES)
        if status in (429, 503):
            wait = response.headers.get("retry-after", "")
            message = f"{self.url} takes no requests for now ({status}): {error_text(content)}"
            raise UpstreamBusy(message, int(wait) if wait.isascii() and wait.isdigit() else 1)
        if status in (400, 413, 422):
            raise client_error(content, self.url)
        # The rest is not the client's fault: a wrong key, a missing model, a failing server.
        raise UpstreamError(f"{self.url} answers {status}: {error_text(content)}", is_failure=status >= 500)

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise UpstreamError(f"{self.url} is not connected")
        return self._session

    def trouble(self, error: Exception) -> UpstreamError:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            return UpstreamError(f"{self.url} cannot be reached ({reason})", is_unreachable=True)
        if isinstance(error, TimeoutError):
            bound = f"upstream_timeout={self._timeout.sock_read:g} s bounds it"
            return UpstreamError(f"{self.url} says nothing for too long ({bound})", is_failure=True)
        return UpstreamError(f"{self.url} broke the connection off ({reason})", is_failure=True)


def _is_unanswered(error: Exception) -> bool:
    """True if a connection was closed before the first byte of an answer."""
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return isinstance(error.message, str)  # else it holds the part of the head that came
    return isinstance(error, _RESET)


class Stream:
    """The events of one answer, from its first token on. Closing it early closes the connection, and so the request.

    `num_cached_tokens`: prompt tokens from the upstream's cache; None until its last event.
    """

    def __init__(self, upstream: Upstream) -> None:
        self.response: aiohttp.ClientResponse | None = None
        self.num_cached_tokens: int | None = None
        self._upstream = upstream
        self._reader = EventReader()
        self._first: list[Choice] = []
        self._is_closed = False
        upstream.num_outstanding += 1

    async def begin(self) -> None:
        """Read up to the first token. Raises: UpstreamError."""
        while not any(choice.text or choice.token_ids or choice.finish_reason for choice in self._first):
            more = await self._read()
            if more is None:
                raise UpstreamError(f"{self._upstream.url} ended its answer before it began")
            self._first = [choice for choice in more if choice.text or choice.token_ids or choice.finish_reason]

    async def more(self) -> list[Choice] | None:
        """The next events, None at the end. Raises: UpstreamError."""
        if self._first:
            first, self._first = self._first, []
            return first
        return await self._read()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._upstream.num_outstanding -= 1
        if self.response is not None:
            if self.response.content.at_eof():
                self.response.release()
            else:
                self.response.close()

    async def _read(self) -> list[Choice] | None:
        assert self.response is not None
        content, found = self.response.content, []
        try:
            data = await content.readany()
        except _TROUBLE as error:
            raise self._upstream.trouble(error) from error
        if not data:
            return None
        for payload in self._reader.push(data):
            if payload == _END:
                continue
            try:
                chunk = chunks.decode(payload)
            except msgspec.MsgspecError as error:
                raise UpstreamError(f"{self._upstream.url} sent an event that cannot be read: {error}") from error
            problem = chunk_error(chunk)
            if problem is not None:
                raise UpstreamError(f"{self._upstream.url} failed: {problem}")
            found += chunk.choices
            if chunk.usage is not None:
                self.num_cached_tokens = chunk.num_cached_tokens
        return found
