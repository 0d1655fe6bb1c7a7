"""Serve's router chooses as the remote engine does: the same server for a beginning, and the same next one.

Needs Ray (`make test-ray`); skipped where it is not installed.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from dragoman.engine.base import Engine
from dragoman.types import EngineRequest
from tests.contract.asking import first_output, run
from tests.engine.remote.asking import beginning, remote, request
from tests.support.fake_upstream import FakeUpstream
from tests.support.patience import until

pytest.importorskip("ray.serve", reason="Ray is not installed; see `make test-ray`")


async def chosen(request: EngineRequest, loads: dict[str, int]) -> str:
    """The replica that the router asks Serve to try first, of replicas with these names and requests."""
    from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID
    from ray.serve.request_router import PendingRequest

    from dragoman.ray.router import PrefixRouter

    deployment = DeploymentID("engine", "app")
    router = PrefixRouter(deployment, DeploymentHandleSource.REPLICA, use_replica_queue_len_cache=True)
    router.initialize_state()
    replicas: list[Any] = [SimpleNamespace(replica_id=ReplicaID(name, deployment)) for name in loads]
    for replica in replicas:
        router.replica_queue_len_cache.update(replica.replica_id, loads[replica.replica_id.unique_id])
    pending = PendingRequest([request, ()], {}, cast("Any", None))
    (first, *_) = await router.choose_replicas(replicas, pending)
    return str(first[0].replica_id.unique_id)


def outstanding(engine: Engine) -> dict[str, int]:
    return {one.name: one.num_outstanding for one in engine.health().upstreams}


def test_both_send_a_beginning_to_the_same_server_and_spill_to_the_same_next_one() -> None:
    upstreams = [FakeUpstream(max_model_len=256) for _ in range(4)]

    async def test() -> None:
        async with remote(*upstreams) as engine:
            for upstream in upstreams:
                upstream.hangs_after = 1
            for number in range(6):
                streams, served = [], []
                for end in range(10):
                    asking = request(text=f"{beginning(number)} {end}")
                    before = outstanding(engine)
                    streams.append(engine.generate(asking))
                    await first_output(streams[-1])
                    after = outstanding(engine)
                    (place,) = [name for name in after if after[name] > before[name]]
                    assert place == await chosen(asking, before)
                    served.append(place)
                assert len(set(served)) > 1, "a server would have more than a quarter above the mean"
                assert served[3] == served[0], "one of three is the mean"
                for stream in streams:
                    await stream.aclose()
                await until(lambda: not any(outstanding(engine).values()))

    run(test())
