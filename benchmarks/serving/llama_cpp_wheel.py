"""llama.cpp's server from its wheel, xllamacpp, with the options of llama-server that the benchmarks set.

Does: start it with a file, and wait to be ended. Does not: import anything of this project: it is run by the Python of the
peer's own environment (see peers.py), from the repository's root:

    python -m benchmarks.serving.llama_cpp_wheel -m MODEL.gguf --port 8080 -t 2 -c 1024 -np 4
"""

from __future__ import annotations

import argparse
import signal

import xllamacpp


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description="llama.cpp's server from its wheel.")
    parser.add_argument("-m", dest="model", required=True)
    for name in ("--port", "-t", "-c", "-np"):
        parser.add_argument(name, type=int, required=True)
    given = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # in its threads, too: it is waited for below
    parameters = xllamacpp.CommonParams()
    parameters.model.path, parameters.port = given.model, given.port
    parameters.n_ctx, parameters.n_parallel = given.c, given.np
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = given.t
    server = xllamacpp.Server(parameters)
    signal.sigwait([signal.SIGTERM])
    del server


if __name__ == "__main__":
    main()
