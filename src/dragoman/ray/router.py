"""Serve's request router for the engine deployment, in each process that holds a handle."""

from __future__ import annotations

import random
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from dragoman.engine.affinity import DEFAULT_PREFIX_TOKENS, preferred, prefix_key
from dragoman.types import EngineRequest


class PrefixRouter(RequestRouter):
    """Replicas by rendezvous hashing of the prompt's beginning, with bounded load."""

    _prefix_tokens = DEFAULT_PREFIX_TOKENS

    def initialize_state(self, prefix_tokens: int = DEFAULT_PREFIX_TOKENS, **others: Any) -> None:
        """Take over `request_router_kwargs` of the deployment."""
        self._prefix_tokens = prefix_tokens

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """One replica per rank: Serve takes the first one that has room."""
        replicas = {str(replica.replica_id.unique_id): replica for replica in candidate_replicas}
        arguments = pending_request.args if pending_request is not None else []
        if not arguments or not isinstance(arguments[0], EngineRequest):
            # Serve queries the first of equally busy replicas, so some would never report their load.
            return [random.sample(candidate_replicas, len(candidate_replicas))]
        request, avoided = arguments
        left = {name: replica for name, replica in replicas.items() if name not in avoided} or replicas
        cache = self.replica_queue_len_cache
        loads = {name: cache.get(replica.replica_id) or 0 for name, replica in left.items()}
        return [[left[name]] for name in preferred(prefix_key(request, self._prefix_tokens), loads)]
