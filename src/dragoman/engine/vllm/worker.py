"""An extension of vLLM's worker processes, which import nothing else of this package."""

from __future__ import annotations

from typing import Any

METHOD = "unapplied_adapter_modules"


class AdapterWitness:
    """A worker extension in vLLM's sense: its methods become the worker's."""

    model_runner: Any  # the worker's

    def unapplied_adapter_modules(self, number: int) -> list[str]:
        """The modules of an adapter that this worker has but does not apply."""
        manager = self.model_runner.lora_manager._adapter_manager
        return sorted(set(manager.get_adapter(number).loras) - set(manager.modules))
