"""SmolLM3: Llama some of whose layers do not turn by position."""

from __future__ import annotations

from dragoman.models.config import Config
from dragoman.models.families.llama import Llama
from dragoman.models.families.windows import all_but_every, no_slides, read_slides


class SmolLM3(Llama):
    """SmolLM3 3B."""

    architectures = ("SmolLM3ForCausalLM",)
    is_tied = True

    def read_slides(self, config: Config) -> tuple[bool, ...]:
        """None in the published model; if switched on, the layers that do not turn."""
        self.turns = self.read_turns(config)
        config.skip("max_window_layers")
        if config.flag("use_sliding_window") and "sliding_window" in config:
            return read_slides(config, lambda index: not self.turns[index])
        return no_slides(config)

    def read_turns(self, config: Config) -> tuple[bool, ...]:
        num_layers = config.count("num_hidden_layers")
        interval = config.count("no_rope_layer_interval", 4)
        if "no_rope_layers" in config:
            return tuple(flag != 0 for flag in config.numbers("no_rope_layers", num_layers))
        return tuple(map(all_but_every(interval), range(num_layers)))

    def is_turned(self, index: int) -> bool:
        return self.turns[index]
