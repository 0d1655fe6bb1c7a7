import dragoman  # noqa: F401  # before any test imports openvino: see there what it keeps from reporting
