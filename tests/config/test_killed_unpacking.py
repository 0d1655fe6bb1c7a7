"""Archives while starts are killed or run at the same time: the model is complete, and nothing else is left.

Processes end as SIGKILL ends them, between two lines of Python of those that unpack, in this project or in the library.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dragoman.config.archives import unpack
from tests.config.test_archives import contents, pack
from tests.support.tables import table
from tests.support.tiers import everything

pytestmark = pytest.mark.varies("the lines that unpack are those of the Python's own library")

MODEL = {"llama/config.json": "{}", "llama/model.safetensors": "w" * 40_000, "llama/serving.properties": "option.a=1"}
WHOLE = {name.removeprefix("llama/"): text for name, text in MODEL.items()}
SUFFIXES = (".tar.gz", ".zip")

# Counts the lines of Python that unpacking takes; then unpacks into a new cache for each moment that is tried, in a process
# that kills itself before that line. Every line of ours is a moment (`make test`: every fourth), and some of the library's.
KILLED = """
import os, signal, sys
from pathlib import Path
from dragoman.config.archives import unpack

archive, caches = Path(sys.argv[1]), Path(sys.argv[2])
OURS = ("archives.py", "scratch.py")

def unpack_until(moment, cache):
    lines = []
    def trace(frame, event, _argument):
        if event == "line":
            lines.append(os.path.basename(frame.f_code.co_filename) in OURS)
            if len(lines) == moment:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace
    sys.settrace(trace)
    unpack(archive, cache)
    sys.settrace(None)
    return lines

unpack_until(0, caches / "first")  # what is imported meanwhile is none of it
lines = unpack_until(0, caches / "second")
for moment in [at for at, is_ours in enumerate(lines, 1) if is_ours or at % 37 == 0][::int(sys.argv[3])]:
    if (child := os.fork()) == 0:
        unpack_until(moment, caches / str(moment))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, moment
    print(moment, flush=True)
"""

# Unpacks, and waits where all is unpacked and about to be moved, or where a part is.
HELD = """
import os, shutil, sys
from pathlib import Path
from dragoman.config.archives import unpack

def held(go_on):
    def wait(*values, **named):
        print("here", flush=True)
        sys.stdin.readline()
        return go_on(*values, **named)
    return wait

if sys.argv[3] == "whole":
    os.rename = held(os.rename)
else:
    shutil.copyfileobj = held(shutil.copyfileobj)
print(unpack(Path(sys.argv[1]), Path(sys.argv[2])), flush=True)
"""


@table("suffix", SUFFIXES)
def test_after_a_kill_at_any_moment_the_next_start_unpacks_everything(suffix: str, tmp_path: Path) -> None:
    archive, caches = pack(tmp_path / f"a{suffix}", MODEL), tmp_path / "caches"
    step = 1 if everything() else 4
    words = [sys.executable, "-c", KILLED, str(archive), str(caches), str(step)]
    told = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, timeout=300).stdout
    moments = told.split()
    kept = set()
    for moment in moments:
        cache = caches / moment
        there = [path for path in cache.glob("*") if not path.name.startswith(".")]
        kept.add(len(there))
        directory = unpack(archive, cache)
        assert contents(directory) == WHOLE, moment
        unpack(pack(tmp_path / f"b{suffix}", WHOLE), cache)  # whoever unpacks something takes away what was left
        assert not list(cache.glob(".*")), moment
    assert kept == {0, 1}, "kills before and after the model was there"
    assert len(moments) > 60 // step


@contextmanager
def held(archive: Path, cache: Path, place: str) -> Iterator[subprocess.Popen[str]]:
    """A process that unpacks, and waits for a word to continue."""
    words = [sys.executable, "-c", HELD, str(archive), str(cache), place]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "here\n"
            yield process
        finally:
            process.kill()


def directory_of(process: subprocess.Popen[str]) -> Path:
    """Where a process that may go on has unpacked to. Fails if it fails."""
    out, errors = process.communicate("\n" * 100, timeout=60)
    assert process.returncode == 0, errors
    return Path(out.splitlines()[-1])


@table("places", [("whole", "whole"), ("part", "part"), ("part", "whole")], ids=str)
@table("suffix", SUFFIXES)
def test_simultaneous_first_starts_all_find_the_model(suffix: str, places: tuple[str, str], tmp_path: Path) -> None:
    archive, cache = pack(tmp_path / f"a{suffix}", MODEL), tmp_path / "cache"
    with held(archive, cache, places[0]) as one, held(archive, cache, places[1]) as two:
        assert len(list(cache.glob(".unfinished-*"))) == 2, "each has a place of its own"
        third = unpack(archive, cache)  # one that is faster than both
        assert contents(third) == WHOLE
        assert directory_of(one) == directory_of(two) == third
    assert contents(third) == WHOLE
    assert [path.name for path in cache.iterdir()] == [third.parent.name]


@table("suffix", SUFFIXES)
def test_a_killed_start_does_not_disturb_another(suffix: str, tmp_path: Path) -> None:
    archive, cache = pack(tmp_path / f"a{suffix}", MODEL), tmp_path / "cache"
    with held(archive, cache, "part") as one, held(archive, cache, "whole") as two:
        one.kill()
        one.communicate(timeout=60)
        directory = directory_of(two)
    assert contents(directory) == WHOLE
    assert contents(unpack(archive, cache)) == WHOLE
