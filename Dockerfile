# dragoman in a container: a user without rights, nothing written outside /cache and /tmp, SageMaker's contract.
#
#     docker build -t dragoman .
#     docker run --rm -p 8080:8080 --read-only --tmpfs /tmp -v dragoman-cache:/cache -v ./my-model:/models/my-model:ro \
#         dragoman serve /models/my-model
#
# SageMaker mounts a model at /opt/ml/model and runs the image with the word "serve". Options come from the command line, or
# from the environment (OPTION_NAME=value).

ARG PYTHON=3.12

FROM python:${PYTHON}-slim-bookworm AS build
# Builds the library of kernels; without it the image computes with OpenVINO's.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY native native
COPY src src
ARG EXTRAS=""
RUN python -m venv /opt/dragoman \
    && PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
       /opt/dragoman/bin/pip install --no-cache-dir ".${EXTRAS}" \
    && /opt/dragoman/bin/pip uninstall --yes pip

FROM python:${PYTHON}-slim-bookworm
LABEL org.opencontainers.image.title="dragoman" \
      org.opencontainers.image.description="One LLM inference server that speaks LMI, OpenVINO Model Server, OpenAI, TGI and plain text" \
      org.opencontainers.image.licenses="Apache-2.0" \
      com.amazonaws.sagemaker.capabilities.accept-bind-to-port="true" \
      com.amazonaws.sagemaker.capabilities.multi-models="true"
RUN useradd --uid 10001 --home-dir /cache --no-create-home --shell /usr/sbin/nologin dragoman \
    && install --directory --owner=dragoman --mode=0755 /cache
COPY --from=build /opt/dragoman /opt/dragoman
ENV PATH=/opt/dragoman/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    SERVING_HOST=0.0.0.0 \
    XDG_CACHE_HOME=/cache \
    HF_HOME=/cache/huggingface
VOLUME /cache
WORKDIR /cache
USER 10001
EXPOSE 8080
# Loading a large model takes minutes: until then a container is "starting", and not unhealthy.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ.get('SAGEMAKER_BIND_TO_PORT', os.environ.get('SERVING_PORT', '8080')) + '/ping')"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["dragoman"]
CMD ["serve"]
