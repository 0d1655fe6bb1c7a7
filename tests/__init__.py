from contextlib import suppress

with suppress(ModuleNotFoundError):  # environments of clients have none
    import dragoman  # noqa: F401  # before any test imports openvino: see there what it keeps from reporting
