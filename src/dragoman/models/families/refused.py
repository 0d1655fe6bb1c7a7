"""Architectures that people have and that are not served, with the reason. Read by `families` when a model is loaded."""

from __future__ import annotations

NOT_PUT_TOGETHER = "its parts (convolutions, selective scans, attention) are known here, but not in this combination"

REFUSED = {
    "BambaForCausalLM": NOT_PUT_TOGETHER,
    "FalconMambaForCausalLM": NOT_PUT_TOGETHER,
    "MambaForCausalLM": NOT_PUT_TOGETHER,
    "Zamba2ForCausalLM": NOT_PUT_TOGETHER,
}
