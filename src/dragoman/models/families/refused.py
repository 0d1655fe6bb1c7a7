"""Architectures that people have and that are not served, with the reason. Read by `families` when a model is loaded."""

from __future__ import annotations

SELECTIVE_SCANS = "its layers are selective scans (Mamba), for which this server has no operation"

NOT_PUT_TOGETHER = "its parts (states, convolutions, experts, pictures) are known here, but not in this combination"

REFUSED = {
    "BambaForCausalLM": SELECTIVE_SCANS,
    "FalconMambaForCausalLM": SELECTIVE_SCANS,
    "JambaForCausalLM": SELECTIVE_SCANS,
    "Lfm2MoeForCausalLM": NOT_PUT_TOGETHER,
    "MambaForCausalLM": SELECTIVE_SCANS,
    "NemotronHForCausalLM": SELECTIVE_SCANS,
    "Zamba2ForCausalLM": SELECTIVE_SCANS,
    "RecurrentGemmaForCausalLM": "its layers are linear recurrences, for which this server has no operation",
}
