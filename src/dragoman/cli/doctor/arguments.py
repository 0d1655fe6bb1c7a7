"""The options of `dragoman doctor` itself; all others are the server's, whose effect it reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dragoman.cli.command_options import Command, ReadWords, option, options_of
from dragoman.config.kinds import Switch

_USAGE = """\
usage: dragoman doctor [MODEL] [options]

Examines this machine in a few seconds: what its processor can do, how many cores and how much memory there are and how fast
it is, where models are kept and how fast that is read, versions, the port; then what MODEL would be here: how it is stored,
the memory it takes, an estimate of its speed. What is wrong is told with how to mend it. Nothing is loaded or downloaded.
All options of `dragoman serve` may be given too. The exit code is 1 if a server would not start. See docs/doctor.md.

  dragoman doctor
  dragoman doctor ./my-model --dtype int4 --port 9000
  dragoman doctor --json
"""


@dataclass(frozen=True, slots=True)
class DoctorArguments:
    """`server_words`: the server's options, which may be wrong."""

    server_words: tuple[str, ...]
    json: bool = option(Switch(), "print JSON instead of a table", False)


def read_doctor(words: ReadWords, _: Mapping[str, str]) -> DoctorArguments | None:
    return words.made(DoctorArguments, server_words=tuple(words.others))


COMMAND = Command(
    _USAGE, options_of(DoctorArguments), read_doctor, "dragoman.cli.doctor.command", takes_server_options=True
)
