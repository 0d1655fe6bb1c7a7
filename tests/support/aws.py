"""AWS's own client for SageMaker's runtime, pointed at a server of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3  # type: ignore[import-untyped]
from botocore.config import Config  # type: ignore[import-untyped]


@contextmanager
def aws_runtime(url: str, key: tuple[str, str] = ("any", "any"), **config: Any) -> Iterator[Any]:
    """A `sagemaker-runtime` client that does not retry and signs with that key; its connections are closed at the end."""
    client = boto3.client(
        "sagemaker-runtime",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=key[0],
        aws_secret_access_key=key[1],
        config=Config(retries={"max_attempts": 0}, **config),
    )
    try:
        yield client
    finally:
        client.close()
