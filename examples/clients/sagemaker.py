"""boto3, as code for Amazon SageMaker calls an endpoint: whole, and as a stream of events.

Install: pip install boto3
Run:     dragoman serve                             (in another terminal)
         python examples/clients/sagemaker.py "What is a river?"
Elsewhere: DRAGOMAN_URL=http://host:port. On AWS, leave out endpoint_url and the keys, and name your endpoint.
"""

import json
import os
import sys
from collections.abc import Iterable, Iterator

import boto3

URL = os.environ.get("DRAGOMAN_URL", "http://127.0.0.1:8080")
ENDPOINT = "any"  # a server answers under every name; with several models it is the name of one


def main(question: str) -> None:
    """Ask by both ways, and print what comes."""
    # boto3 signs calls, with any keys: the server checks signatures only if it was started with --aws-credentials.
    client = boto3.client(
        "sagemaker-runtime",
        endpoint_url=URL,
        region_name=os.environ.get("AWS_REGION", "us-east-1"),
        aws_access_key_id=os.environ.get("AWS_ACCESS_KEY_ID", "none"),
        aws_secret_access_key=os.environ.get("AWS_SECRET_ACCESS_KEY", "none"),
    )
    body = {"inputs": question, "parameters": {"max_new_tokens": 40}}
    answer = client.invoke_endpoint(EndpointName=ENDPOINT, ContentType="application/json", Body=json.dumps(body))
    print("whole:", json.loads(answer["Body"].read())["generated_text"].strip())

    streamed = client.invoke_endpoint_with_response_stream(
        EndpointName=ENDPOINT, ContentType="application/json", Body=json.dumps({**body, "stream": True})
    )
    print("streamed:", end=" ")
    for line in lines(streamed["Body"]):
        print(json.loads(line)["token"]["text"], end="", flush=True)
    print()


def lines(events: Iterable[dict[str, dict[str, bytes]]]) -> Iterator[bytes]:
    """The lines of JSON in the stream; an event may end in the middle of one."""
    rest = b""
    for event in events:
        *whole, rest = (rest + event["PayloadPart"]["Bytes"]).split(b"\n")
        yield from whole


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or "What is a river?")
