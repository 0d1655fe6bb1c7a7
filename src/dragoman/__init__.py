"""dragoman: one LLM inference server that speaks LMI, OpenVINO Model Server, OpenAI, TGI and plain text."""

__version__ = "0.1.0"
