"""vLLM in this process, behind the engine protocol. The package vllm is imported inside functions only."""
