"""Hunyuan with experts in every layer, beside one that every token takes."""

from __future__ import annotations

from dragoman.models.config import Config
from dragoman.models.facts import ExpertFacts, RoutingRule
from dragoman.models.families.experts import WithExperts, read_experts
from dragoman.models.families.hunyuan import HunyuanDense

_OF_PICTURES = """
    anyres_pooling_size anyres_vit_max_image_size anyres_vit_two_views max_image_size num_media_embeds skip_cls_token
    video_end_id video_start_id vit_add_patchemb_bias vit_input_resolution vit_mapping_type vit_norm_type vit_patch vit_path
    vit_remove_prenorm vit_token vit_type vit_used_rms_norm
"""  # of a model that sees, whose keys checkpoints carry along
_OF_EXPERTS = ("num_experts", "intermediate_size", "hidden_act")
_OF_TRAINING = "capacity_factor moe_drop_tokens moe_random_routing_dropped_token"


class HunyuanExperts(WithExperts, HunyuanDense):
    """Hunyuan A13B."""

    architectures = ("HunYuanMoEV1ForCausalLM",)
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
        told = Config({"num_experts_per_tok": active, **{key: config.value(key) for key in _OF_EXPERTS}})
        rule = RoutingRule(is_normalized=True)
        return read_experts(told, rule, size="intermediate_size", shared_size=size)
