"""OpenAI's Responses API, below `/v1` and as OpenVINO Model Server has it below `/v3`."""
