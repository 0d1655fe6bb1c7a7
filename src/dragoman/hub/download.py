"""Downloads models of the hub into its cache on this machine, through huggingface_hub. `files` chooses the files.

The library downloads on its own threads. It is imported only when needed, since the import takes as long as a start.
"""

from __future__ import annotations

import errno
import glob
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.hub.cache import cached_snapshot, gguf_file, is_commit, missing, repo_folder
from dragoman.hub.environment import HubEnvironment
from dragoman.hub.files import Choice, HubFile, choose_files
from dragoman.hub.names import HubError, HubModel

Progress = Callable[[str, float], None]
Note = Callable[[str], None]


class Arrived(NamedTuple):
    """The progress of a download: bytes here and needed, at that commit of the repository."""

    commit: str
    num_bytes: int
    size: int


Count = Callable[[Arrived], None]

PUBLIC_HUB = "https://huggingface.co"
_WATCH_S = 0.2  # between two reports of progress
_WORKERS = 4  # files at a time
_ATTEMPTS = 3  # in a row without any progress
RETRY_S = 1.0

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
_MAKE_ROOM = "make room (`dragoman models` lists what is there), or set HF_HOME to a larger disk"
_PRIVATE = "or it is private: then set HF_TOKEN to a token that may read it"


def find_cached(model: HubModel, environment: HubEnvironment) -> Path:
    """The cached model: its directory, or the GGUF file. Raises: HubError if it is missing or incomplete."""
    snapshot = cached_snapshot(environment.cache, model)
    if snapshot is None:
        raise HubError(f"{model}: neither a directory here nor a model in the hub's cache, {environment.cache}")
    if lacking := missing(snapshot, model.gguf):
        raise HubError(f"{model}: incomplete in the hub's cache, {environment.cache}: {lacking} is missing")
    return _served_path(snapshot, model)


def bring(
    model: HubModel,
    environment: HubEnvironment,
    progress: Progress,
    note: Note,
    count: Count = lambda arrived: None,
) -> Path:
    """The model's directory (or GGUF file) in the cache; missing files are downloaded. Raises: HubError.

    `progress` and `count` are called on one thread at a time. `note` gets one line if the cache is used without the
    hub.
    """
    snapshot = cached_snapshot(environment.cache, model)
    is_whole = snapshot is not None and not missing(snapshot, model.gguf)
    if environment.is_offline:
        try:
            path = find_cached(model, environment)
        except HubError as error:
            raise HubError(f"{error}; nothing is downloaded, because HF_HUB_OFFLINE is set") from None
        note(f"{model}: taken from the cache as it is there, because HF_HUB_OFFLINE is set")
        return path
    if snapshot is not None and is_whole and is_commit(model.revision):
        return _served_path(snapshot, model)
    try:
        with _worded(model, environment):
            return _served_path(_download(model, environment, progress, count), model)
    except _NoAnswer as error:
        if snapshot is None or not is_whole:
            raise HubError(str(error)) from error
        note(f"{error}; taken from the cache as it is there")
        return _served_path(snapshot, model)


def _served_path(snapshot: Path, model: HubModel) -> Path:
    found = gguf_file(snapshot, model.gguf) if model.gguf else snapshot
    assert found is not None  # checked by the caller
    return found


def _download(model: HubModel, environment: HubEnvironment, progress: Progress, count: Count) -> Path:
    import huggingface_hub as library
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()  # one display for all files
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    api = library.HfApi(endpoint=environment.endpoint, token=environment.token)
    facts = api.model_info(model.repo, revision=model.revision, files_metadata=True)
    choice = choose_files(model, [_hub_file(sibling) for sibling in facts.siblings or ()])
    snapshot = repo_folder(environment.cache, model.repo) / "snapshots" / str(facts.sha)

    def get(files: Sequence[HubFile]) -> None:
        library.snapshot_download(
            model.repo,
            revision=model.revision,
            cache_dir=environment.cache,
            endpoint=environment.endpoint,
            token=environment.token,
            allow_patterns=[glob.escape(file.name) for file in files],
            max_workers=_WORKERS,
        )

    watch = _Watch(model, snapshot, choice)
    if not all((snapshot / file.name).is_file() for file in choice.all):
        _check_room(model, environment, choice.size - watch.arrived())
        with _watched(watch, progress, count):
            for files in (choice.small, choice.weights):
                _persist(lambda files=files: get(files), watch)  # type: ignore[misc]
    elif not _is_noted(environment, model, str(facts.sha)):
        get(choice.small)
    if any(not (snapshot / file.name).is_file() for file in choice.all):  # the library falls back to the cache
        raise _NoAnswer(f"{model}: {environment.endpoint or PUBLIC_HUB} broke off")
    return snapshot


def _check_room(model: HubModel, environment: HubEnvironment, size: int) -> None:
    place = next(path for path in (environment.cache, *environment.cache.absolute().parents) if path.is_dir())
    free = _free_bytes(place)
    if size > free:
        raise HubError(
            f"{model}: needs {size_text(size)} in {environment.cache}, and {size_text(free)} are free; {_MAKE_ROOM}"
        )


def _free_bytes(place: Path) -> int:
    return shutil.disk_usage(place).free


def _persist(get: Callable[[], None], watch: _Watch) -> None:
    """Call `get` until it succeeds: broken downloads continue where they stopped.

    Raises: the error of `get` if it is permanent, or nothing more arrives.
    """
    attempts = 0
    while True:
        before = watch.arrived()
        try:
            return get()
        except Exception as error:
            attempts = 0 if watch.arrived() > before else attempts + 1
            if attempts >= _ATTEMPTS or not _passes(error):
                raise
            time.sleep(RETRY_S)


def _is_noted(environment: HubEnvironment, model: HubModel, commit: str) -> bool:
    """True if the cache can resolve the revision without the hub."""
    found = cached_snapshot(environment.cache, model)
    return found is not None and found.name == commit


def _hub_file(sibling: Any) -> HubFile:
    large = getattr(sibling, "lfs", None)
    etag = large.sha256 if large is not None else getattr(sibling, "blob_id", None)
    return HubFile(str(sibling.rfilename), int(sibling.size or 0), str(etag or ""))


class _Watch:
    def __init__(self, model: HubModel, snapshot: Path, choice: Choice) -> None:
        self.stage = f"downloading {model} ({len(choice.all)} files, {size_text(choice.size)})"
        self._files = choice.all
        self._size = max(choice.size, 1)
        self._snapshot = snapshot
        self._blobs = snapshot.parent.parent / "blobs"

    def tell(self, progress: Progress, count: Count) -> None:
        num_bytes = min(self.arrived(), self._size)
        progress(self.stage, num_bytes / self._size)
        count(Arrived(self._snapshot.name, num_bytes, self._size))

    def arrived(self) -> int:
        return sum(self._arrived(file) for file in self._files)

    def _arrived(self, file: HubFile) -> int:
        if (self._snapshot / file.name).is_file():
            return file.size
        parts = self._blobs.glob(f"{file.etag}*.incomplete") if file.etag else ()
        return max((_size(path) for path in parts), default=0)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # it has just been renamed
        return 0


def size_text(size: int) -> str:
    for unit, width in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= width:
            return f"{size / width:.1f} {unit}"
    return f"{size} B"


@contextmanager
def _watched(watch: _Watch, progress: Progress, count: Count) -> Iterator[None]:
    is_over = threading.Event()

    def tell() -> None:
        while not is_over.wait(_WATCH_S):
            watch.tell(progress, count)

    watch.tell(progress, count)
    thread = threading.Thread(target=tell, name="watch-download", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    watch.tell(progress, count)


class _NoAnswer(Exception):
    """The hub cannot be reached, or has failed; the cache may suffice."""


@contextmanager
def _worded(model: HubModel, environment: HubEnvironment) -> Iterator[None]:
    """Turns the library's errors into HubError, one line with advice, or _NoAnswer."""
    from huggingface_hub import errors

    hub = environment.endpoint or PUBLIC_HUB
    has_token = environment.token is not None
    try:
        yield
    except (HubError, _NoAnswer):
        raise
    except errors.GatedRepoError as error:
        ask = f"{'ask for access' if has_token else 'accept its terms'} at {hub}/{model.repo}, and "
        raise HubError(f"{model}: gated on {hub}; {ask}set HF_TOKEN to a token of an account with access") from error
    except errors.RevisionNotFoundError as error:
        raise HubError(f"{model}: {model.repo} on {hub} has no revision {model.revision}") from error
    except errors.RepositoryNotFoundError as error:
        helps = "or it is private and HF_TOKEN's account may not read it" if has_token else _PRIVATE
        raise HubError(f"{model}: neither a directory here nor a model on {hub}, {helps}") from error
    except errors.HFValidationError as error:
        raise HubError(f"{model}: not a valid model name on {hub}: {error}") from error
    except errors.DisabledRepoError as error:
        raise HubError(f"{model}: disabled on {hub}") from error
    except Exception as error:
        raise _worded_error(error, model, environment) from error


def _worded_error(error: Exception, model: HubModel, environment: HubEnvironment) -> Exception:
    hub = environment.endpoint or PUBLIC_HUB
    for cause in _causes(error):
        status = getattr(getattr(cause, "response", None), "status_code", None)
        if status in (401, 403):
            return HubError(
                f"{model}: {hub} refuses access (status {status}); set HF_TOKEN to a token that may read it"
            )
        if status is not None:
            return _NoAnswer(f"{model}: {hub} fails (status {status})")
        number = getattr(cause, "errno", None)
        if number in _NO_ROOM:
            return HubError(f"{model}: no room left for it in {environment.cache}; {_MAKE_ROOM}; what came is kept")
        if number in _READ_ONLY and getattr(cause, "filename", None):
            return HubError(f"{model}: {environment.cache} cannot be written: {cause}; HF_HOME names another place")
    if isinstance(error, (ConnectionError, TimeoutError)) or _is_of_the_network(error):
        return _NoAnswer(f"{model}: {hub} cannot be reached, or broke off: {_last_line(error)}")
    return HubError(f"{model}: cannot be downloaded from {hub}: {_last_line(error)}")


def _passes(error: Exception) -> bool:
    statuses = [getattr(getattr(cause, "response", None), "status_code", None) for cause in _causes(error)]
    numbers = [getattr(cause, "errno", None) for cause in _causes(error)]
    if any(status is not None and status < 500 for status in statuses):
        return False
    return _is_of_the_network(error) and not set(numbers) & {*_NO_ROOM, *_READ_ONLY, errno.ECONNREFUSED}


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes, the innermost last, also from arguments, where requests keeps them."""
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop(0)
        if one is None or one in seen:
            continue
        seen.append(one)
        yield one
        waiting += [one.__cause__, one.__context__, *(word for word in one.args if isinstance(word, BaseException))]


def _is_of_the_network(error: Exception) -> bool:
    """The library speaks through requests before version 1, through httpx since; all errors derive from theirs."""
    modules = ("requests", "urllib3", "httpx", "httpcore")
    kinds = [kind for cause in _causes(error) for kind in type(cause).__mro__]
    from huggingface_hub.errors import FileMetadataError, LocalEntryNotFoundError

    return isinstance(error, (FileMetadataError, LocalEntryNotFoundError)) or any(
        kind.__module__.partition(".")[0].rstrip("2") in modules for kind in kinds
    )


def _last_line(error: BaseException) -> str:
    reason = " ".join(str(list(_causes(error))[-1]).split()) or type(error).__name__
    return reason if len(reason) <= 200 else f"{reason[:200]}..."
