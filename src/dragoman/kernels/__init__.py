"""Kernels of dragoman's own: a native library with operations for OpenVINO's graphs. Its sources are native/."""
