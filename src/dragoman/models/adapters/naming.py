"""Finds the tensor of a checkpoint that an adapter's module means, whatever prefix the decoder's body has in either."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.models.families.base import Family


@dataclass(frozen=True, slots=True)
class ModuleNames:
    """The names of a family's modules. `bodies`: prefixes of the decoder, the longest first; `layers`: of its layers."""

    bodies: tuple[str, ...]
    layers: str

    @classmethod
    def of(cls, family: Family) -> ModuleNames:
        bodies = {f"{layout.body}." for layout in family.layouts if layout.body}
        return cls(tuple(sorted(bodies, key=len, reverse=True)), f"{family.layers}.")

    def common(self, module: str) -> str:
        """The name below the decoder's body, which is the same in all layouts."""
        return next((module.removeprefix(body) for body in self.bodies if module.startswith(body)), module)

    def is_in_layer(self, module: str) -> bool:
        return self.common(module).startswith(self.layers)
