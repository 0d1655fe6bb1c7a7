"""Ministral 3 and Mistral 4: queries grow with the position; the second one is DeepSeek's latent attention and experts."""

from __future__ import annotations

from dataclasses import replace

from dragoman.models.config import Config
from dragoman.models.facts import AttentionFacts, QueryGrowth, RoutingRule
from dragoman.models.families.deepseek import LatentAttention, RoutedExperts
from dragoman.models.families.experts import grouped_rule
from dragoman.models.families.llama import Llama, head_size
from dragoman.models.families.mistral import Mistral
from dragoman.models.rotary import RotaryReading, read_rotary, rotary_description


class GrowingQueries(Llama):
    """Llama whose queries grow by what the description of the rotary rule says."""

    growth: QueryGrowth | None = None

    def read_growing_rotary(self, config: Config, size: int, part: float | None = None) -> RotaryReading:
        """The rotary rule; sets `self.growth` from the same description."""
        described = rotary_description(config)
        described.skip("max_position_embeddings")  # config.json repeats it
        weight = described.number("llama_4_scaling_beta", 0.0)
        if weight:
            self.growth = QueryGrowth(described.count("original_max_position_embeddings"), weight)
        return read_rotary(config, size, scaling=described, part=part)

    def attention_facts(self, config: Config, index: int) -> AttentionFacts:
        return replace(super().attention_facts(config, index), growth=self.growth)


class Ministral3(GrowingQueries, Mistral):
    """Ministral 3 3B, 8B and 14B."""

    architectures = ("Ministral3ForCausalLM",)
    epsilon = ("rms_norm_eps", 1e-5)

    def read_rotary(self, config: Config) -> RotaryReading:
        return self.read_growing_rotary(config, head_size(config))


class Mistral4(GrowingQueries, LatentAttention, RoutedExperts):
    """Mistral Small 4."""

    architectures = ("Mistral4ForCausalLM",)

    def read_rotary(self, config: Config) -> RotaryReading:
        turned, size = self.latent.turned_size, self.latent.head_size
        reading = self.read_growing_rotary(config, size, turned / size)
        if reading.rule.size != turned:
            raise rotary_description(config).error("partial_rotary_factor", f"{turned / size}, as in qk_rope_head_dim")
        return reading

    def routing_rule(self, config: Config) -> RoutingRule:
        return grouped_rule(config)
