"""OpenVINO Model Server."""
