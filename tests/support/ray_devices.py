"""A Ray cluster of two nodes on this machine, to which vLLM's Ray executor gives a device each, without a GPU.

Does: start the nodes, each of which says that it has a GPU, and give the environment in which vLLM takes processors for what
Ray calls one. vLLM asks its platform for that name, and a package can bring a platform (vLLM's platform plugins): this is
vLLM's own for processors, and has the name. Everything else is vLLM's: the placement group, the actors, their messages.
Does not: import ray or vllm; who uses it needs both.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.server_process import free_port, server_python

_PLATFORM = '''
from vllm.platforms.cpu import CpuPlatform


class Platform(CpuPlatform):
    """vLLM's processors, which Ray knows as GPUs."""

    ray_device_key = "GPU"


def plugin():
    """Where vLLM finds it."""
    return "processors_for_ray.Platform"
'''
_FILES = {
    "processors_for_ray.py": _PLATFORM,
    "processors_for_ray-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: processors-for-ray\nVersion: 1.0\n",
    "processors_for_ray-1.0.dist-info/entry_points.txt": "[vllm.platform_plugins]\nray = processors_for_ray:plugin\n",
}
_OPTIONS = ("--num-cpus=2", "--num-gpus=1", "--object-store-memory=100000000", "--disable-usage-stats", "--block")
_PATIENCE_S = 120


@contextmanager
def two_nodes(directory: Path) -> Iterator[dict[str, str]]:
    """What a server needs in its environment to find both; they end with the block. `directory`: for the platform."""
    for name, text in _FILES.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text, encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    paths = os.pathsep.join(path for path in (str(directory), os.environ.get("PYTHONPATH", "")) if path)
    environ = {"PYTHONPATH": paths, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    head = (
        "--head",
        f"--port={address.rpartition(':')[2]}",
        "--node-ip-address=127.0.0.1",
        "--include-dashboard=false",
    )
    with ExitStack() as nodes:
        nodes.enter_context(_node(environ, *head))
        nodes.enter_context(_node(environ, f"--address={address}", "--node-ip-address=127.0.0.1"))
        yield {**environ, "RAY_ADDRESS": address}


@contextmanager
def _node(environ: Mapping[str, str], *options: str) -> Iterator[None]:
    """A node that is up."""
    command = [server_python(), "-m", "ray.scripts.scripts", "start", *options, *_OPTIONS]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **environ}
    )
    output: list[str] = []
    is_up = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line)
            if "Ray runtime started" in line:
                is_up.set()
        is_up.set()  # it has ended

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        assert is_up.wait(_PATIENCE_S), "".join(output)
        assert process.poll() is None, "".join(output)
        yield
    finally:
        process.terminate()
        process.wait(_PATIENCE_S)
        reader.join(_PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()
