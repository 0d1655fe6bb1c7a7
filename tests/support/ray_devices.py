"""A Ray cluster of two nodes on this machine, to which vLLM's Ray executor gives a device each, without a GPU.

Does: start the nodes, each of which says that it has a GPU, and give the environment in which vLLM takes processors for what
Ray calls one. vLLM asks its platform for that name, and a package can bring a platform (vLLM's platform plugins): this is
vLLM's own for processors, and has the name. Everything else is vLLM's: the placement group, the actors, their messages.
Does not: import ray or vllm; who uses it needs both.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.server_process import free_port, server_python, started

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
_READY = re.compile("Ray runtime started")


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
        for options in (head, (f"--address={address}", "--node-ip-address=127.0.0.1")):
            command = [server_python(), "-m", "ray.scripts.scripts", "start", *options, *_OPTIONS]
            nodes.enter_context(started(command, _READY, environ))
        yield {**environ, "RAY_ADDRESS": address}
