"""OpenVINO Model Server's words for requests in OpenAI's wire format, which the APIs with paths below `/v3` share."""
