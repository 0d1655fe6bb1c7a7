"""Hunyuan: Llama that norms each head's queries and keys after rotation, by a stretched base; dense or with experts."""

from __future__ import annotations

from dragoman.models.blocks.attention import HeadNorm
from dragoman.models.blocks.step import LayerInputs
from dragoman.models.config import Config
from dragoman.models.facts import ExpertFacts, RoutingRule
from dragoman.models.families.experts import WithExperts, read_experts
from dragoman.models.families.llama import Llama, head_size
from dragoman.models.rotary import RotaryReading, read_rotary, rotary_description
from dragoman.models.weights import Weights


class HunyuanDense(Llama):
    """Hunyuan 0.5B to 7B of 2025."""

    epsilon = ("rms_norm_eps", 1e-5)
    head_norm_names = ("query_layernorm", "key_layernorm")

    def __init__(self, config: Config) -> None:
        config.expect(norm_type="rms", use_cla=False, use_qk_norm=True, use_rotary_pos_emb=True)
        config.expect(attention_head_dim=head_size(config), org_vocab_size=config.count("vocab_size"))
        config.skip("add_classification_head", "cla_share_factor", "class_num", "dense_list", "enable_lm_head_fp32")
        config.skip("mask_init_id", "pool_type", "eod_token_id", "pad_id", "im_start_id", "im_end_id", "im_newline_id")
        config.skip("text_start_id", "text_end_id")
        super().__init__(config)

    def read_rotary(self, config: Config) -> RotaryReading:
        """`alpha` is a fixed stretch of the base, though its type is called dynamic."""
        described, size = rotary_description(config), head_size(config)
        if "alpha" not in described:
            return read_rotary(config, size)
        described.expect(type="dynamic", rope_type="dynamic")
        theta = described.positive("rope_theta", config.positive("rope_theta", 10_000.0))
        stretched = theta * described.positive("alpha") ** (size / (size - 2))
        return read_rotary(config, size, scaling=Config({"rope_theta": stretched}))

    def norms_of_turned(self, weights: Weights, layer: LayerInputs) -> tuple[HeadNorm, HeadNorm]:
        of_queries, of_keys = (weights.at(name) for name in self.head_norm_names)
        return lambda heads: self.norm(heads, of_queries), lambda heads: self.norm(heads, of_keys)


_OF_PICTURES = """
    anyres_pooling_size anyres_vit_max_image_size anyres_vit_two_views max_image_size num_media_embeds skip_cls_token
    video_end_id video_start_id vit_add_patchemb_bias vit_input_resolution vit_mapping_type vit_norm_type vit_patch vit_path
    vit_remove_prenorm vit_token vit_type vit_used_rms_norm
"""  # keys of a model that sees, which checkpoints carry along
_OF_EXPERTS = ("num_experts", "intermediate_size", "hidden_act")
_OF_TRAINING = "capacity_factor moe_drop_tokens moe_random_routing_dropped_token"


class HunyuanExperts(WithExperts, HunyuanDense):
    """Hunyuan A13B."""

    router_name = "gate.wg"
    shared_name = "shared_mlp"

    def __init__(self, config: Config) -> None:
        config.expect(moe_layer_num_skipped=0, norm_topk_prob=True, use_mixed_mlp_moe=True)
        config.expect(group_limited_greedy=False, position_embedding_xdrope=False, use_mla=False)
        config.skip(*_OF_PICTURES.split(), *_OF_TRAINING.split())
        config.rename({"moe_topk": "num_experts_per_tok"})
        super().__init__(config)

    def expert_facts(self, config: Config, index: int) -> ExpertFacts:
        size, num_layers = config.count("intermediate_size"), config.count("num_hidden_layers")
        for key, number in (("moe_intermediate_size", size), ("num_shared_expert", 1)):
            if config.value(key, number) not in (number, [number] * num_layers):
                raise config.error(key, f"{number} in every layer")
        active = config.value("num_experts_per_tok")
        if isinstance(active, list) and active and active == [active[0]] * num_layers:
            active = active[0]
        shared = Config({"num_experts_per_tok": active, **{key: config.value(key) for key in _OF_EXPERTS}})
        rule = RoutingRule(is_normalized=True)
        return read_experts(shared, rule, size="intermediate_size", shared_size=size)
