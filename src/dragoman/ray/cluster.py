"""The engine factory of `dragoman serve --engine ray`: a server in front of an application's engine deployment.

Such a server does not belong to Serve: it has its own port, sends trailers, and finishes its requests before it ends.
"""

from __future__ import annotations

import importlib.util
import logging
import socket
import threading
from functools import partial
from typing import TYPE_CHECKING

from dragoman.engine.base import MemoryNeeds
from dragoman.engine.factory import EngineOptionError, EngineSetup
from dragoman.errors import how_to_install
from dragoman.ray.arguments import ENGINE
from dragoman.ray.watched import PATIENCE_S

if TYPE_CHECKING:
    from dragoman.ray.factory import FoundDeployment

_REACH_S = 5.0  # for a connection to the cluster's head


class ClusterFactory:
    def needs(self, setup: EngineSetup) -> MemoryNeeds:
        return MemoryNeeds(0)

    def load(self, setup: EngineSetup) -> FoundDeployment:
        """Blocks until a replica has loaded the model. Raises: EngineOptionError."""
        if importlib.util.find_spec("ray") is None:
            raise EngineOptionError("engine", f"needs a package that is not installed: {how_to_install('ray')}")
        address, application = setup.options.get("ray_address", "auto"), setup.options.get("ray_application", "default")
        setup.progress("joining the Ray cluster", 0.0)
        _join(address)
        _check_application(application)
        from dragoman.ray.factory import find_deployment

        return find_deployment(application, setup.progress, partial(_why_unreachable, application))


def _join(address: str) -> None:
    import ray

    if ray.is_initialized():
        if _is_reached():
            return
        ray.shutdown()  # from a cluster that is gone
        from ray.serve import context

        context._set_global_client(None)  # which remembers that cluster's Serve
    try:
        _reach(address)
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # any error of Ray for an unreadable address or one without a cluster
        reason = " ".join(str(error).split())
        raise EngineOptionError(
            "ray_address", f"must be a Ray cluster that this machine is part of: {reason}"
        ) from error


def _reach(address: str) -> None:
    """Connect to HOST:PORT once, as Ray itself tries for minutes. Raises: OSError."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), _REACH_S).close()


def _applications() -> list[str]:
    """The names of applications with engines. Raises: any error of Ray."""
    from ray import serve

    return sorted(name for name, status in serve.status().applications.items() if ENGINE in status.deployments)


def _why_unreachable(application: str | None) -> str:
    """The reason why the application's engines, or Serve itself, cannot be reached; "" if they can. May block."""
    try:
        having = _applications()
    except Exception as error:  # any error of Ray when the cluster is gone
        return f"Ray Serve cannot be reached: {' '.join(str(error).split())}"
    return "" if application is None or application in having else f"the application {application} is gone"


def _is_reached() -> bool:
    """True if Serve answers on the cluster that this process has joined."""
    found: list[str] = []
    asking = threading.Thread(target=lambda: found.append(_why_unreachable(None)), daemon=True)
    asking.start()
    asking.join(PATIENCE_S)
    return found == [""]


def _check_application(name: str) -> None:
    """Raises: EngineOptionError if no application of that name has an engine deployment."""
    from ray.serve.exceptions import RayServeException

    try:
        having = _applications()
    except RayServeException as error:
        problem = "must be an application of Ray Serve, which does not run there"
        raise EngineOptionError("ray_application", problem) from error
    if name not in having:
        known = f"{', '.join(having)} {'is' if len(having) == 1 else 'are'}" if having else "there is none"
        raise EngineOptionError("ray_application", f"must be an application of dragoman.ray on that cluster; {known}")


factory = ClusterFactory()
