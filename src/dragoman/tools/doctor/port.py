"""Checks that the server's port is free, or finds the process that uses it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress

from dragoman.tools.doctor.findings import Finding, Places, Section

_LISTENS = "0A"  # the state of listening in /proc/net/tcp


def port_section(places: Places, host: str, port: int) -> Section:
    """The section on `port`; 0 = any free port. `host`: one or several, separated by commas."""
    told = {"host": host, "port": port}
    try:
        for address in host.split(","):
            _listen(address, port).close()
    except OSError as error:
        holder = _holder(places, port)
        by = f" by {holder}" if holder else ""
        why = (error.strerror or str(error)).partition(" (while ")[0]  # Python repeats the address
        reason = f"cannot listen on {address} port {port}: {why}"
        finding = Finding("problem", reason, f"it is held{by}: end that, or serve with --port {port + 1}")
        if isinstance(error, PermissionError):
            finding = Finding("problem", reason, "serve with a --port above 1023")
        return Section("port", (f"{host} port {port} cannot be used",), {**told, "is_free": False}, (finding,))
    return Section("port", (f"{host} port {port or 'any'} is free",), {**told, "is_free": True})


def _listen(host: str, port: int) -> socket.socket:
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


def _holder(places: Places, port: int) -> str:
    """The process that listens there; "" if it is not visible."""
    wanted = {f"socket:[{inode}]" for inode in _inodes(places, port)}
    for number in places.names("proc", "[0-9]*") if wanted else ():
        directory = places.root / "proc" / number / "fd"
        with suppress(OSError):
            if any(os.readlink(link) in wanted for link in directory.iterdir()):
                return f"process {number} ({places.text(f'proc/{number}/comm')})"
    return ""


def _inodes(places: Places, port: int) -> Iterator[str]:
    for table in ("proc/net/tcp", "proc/net/tcp6"):
        for line in places.text(table).splitlines()[1:]:
            columns = line.split()
            if columns[3] == _LISTENS and int(columns[1].rpartition(":")[2], 16) == port:
                yield columns[9]
