"""An extension of vLLM's workers, which are processes of their own: lists modules of an adapter that they do not apply.

Does: inspect a worker. Does not: change it. Called by `adapters`, over vLLM; imported in the workers, which need
nothing else of this package.
"""

from __future__ import annotations

from typing import Any

METHOD = "unapplied_adapter_modules"


class AdapterWitness:
    """A worker extension, as vLLM calls it: its methods become those of the worker."""

    model_runner: Any  # the worker's

    def unapplied_adapter_modules(self, number: int) -> list[str]:
        """The modules of an adapter that this worker has, and computes nothing with."""
        manager = self.model_runner.lora_manager._adapter_manager
        return sorted(set(manager.get_adapter(number).loras) - set(manager.modules))
