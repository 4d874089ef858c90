"""An object store on loopback for tests: moto's server, and a proxy before it that fails on purpose.

Signatures are checked, by moto. Prints a line of JSON with endpoints and credentials; then answers
each line on stdin with a line of JSON, and ends when stdin does:

  {"do": "faults", ...}  what the proxy does from now on (Faults.set); its counts begin at 0
  {"do": "counts"}       how many requests it has seen, and how many it has spoiled
  {"do": "keys"}         all keys in the bucket
  {"do": "uploads"}      keys of multipart uploads that were neither completed nor aborted
  {"do": "put", "key": ..., "text": ...}

Exit code 77: moto is not installed.
"""

import asyncio
import json
import logging
import os
import random
import re
import sys
import threading

BUCKET = "test-bucket"
POLICY = {"Version": "2012-10-17",
          "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
SPOILED = ("<?xml version='1.0'?><Error><Code>{code}</Code><Message>on purpose</Message></Error>")
STATUS = {"500": ("500 Internal Server Error", "InternalError"),
          "503": ("503 Slow Down", "SlowDown"),
          "403": ("403 Forbidden", "AccessDenied")}


class Faults:
    """What the proxy spoils. Of one event loop."""

    def __init__(self):
        self.set({})

    def set(self, wanted):
        """kinds: any of 500, 503, 403 (none of them reaches the store), cut (neither does the
        request), lost (the store does it, and its answer is lost), half (its answer is cut), delay.
        Spoiled are: rate: each request with that probability, by `seed`; at: those of these numbers,
        from 0 on; from: all from that number on. `only`: among requests that match ("PUT /b/k?q")."""
        self.kinds = wanted.get("kinds", [])
        self.rate, self.at = wanted.get("rate", 0), wanted.get("at", [])
        self.first = wanted.get("from")
        self.only = re.compile(wanted.get("only", ""))
        self.random = random.Random(wanted.get("seed", 0))
        self.seen = self.spoiled = 0

    def next(self, request_line):
        """The kind of fault that this request gets, or None."""
        if not self.only.search(request_line):
            return None
        number = self.seen
        self.seen += 1
        hit = (number in self.at or (self.first is not None and number >= self.first)
               or self.random.random() < self.rate)
        if not hit or not self.kinds:
            return None
        self.spoiled += 1
        return self.random.choice(self.kinds)


class Proxy:
    """Passes on one request a connection after the other, and what the faults leave of it."""

    def __init__(self, store, faults):
        self.store, self.faults = store, faults

    async def serve(self, reader, writer):
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _one(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        kind = self.faults.next(lines[0].rsplit(" ", 1)[0])
        headers = {name.lower(): value.strip()
                   for name, _, value in (line.partition(":") for line in lines[1:] if line)}
        size = int(headers.get("content-length", 0))
        if kind == "cut":
            await reader.readexactly(size // 2 if "expect" not in headers else 0)
            return False
        if "expect" in headers:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(size)
        if kind in STATUS:
            status, code = STATUS[kind]
            text = b"" if lines[0].startswith("HEAD ") else SPOILED.format(code=code).encode()
            writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(text)}\r\n\r\n".encode() + text)
            await writer.drain()
            return True
        if kind == "delay":
            await asyncio.sleep(self.faults.random.random() / 5)
        kept = [line for line in lines if line and not re.match("(?i)(expect|connection):", line)]
        answer = await self._ask("\r\n".join(kept + ["Connection: close", "", ""]), body)
        if kind == "lost":
            return False
        writer.write(answer[:len(answer) // 2] if kind == "half" else answer)
        await writer.drain()
        return False  # The store says so, too.

    async def _ask(self, head, body):
        reader, writer = await asyncio.open_connection(*self.store)
        writer.write(head.encode("latin-1") + body)
        await writer.drain()
        answer = await reader.read()
        writer.close()
        return answer


def start_store():
    """moto with a user and a bucket. Returns host and port, and the boto3 client of that user."""
    os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "4"  # The four calls below; then all are checked.
    try:
        import boto3  # pylint: disable=import-outside-toplevel
        from moto.server import ThreadedMotoServer  # pylint: disable=import-outside-toplevel
    except ImportError as error:
        print(f"moto's server: {error}", file=sys.stderr)
        sys.exit(77)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # Else a line for each request.
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()

    def client(service, key="none", secret="none"):
        return boto3.client(service, endpoint_url=f"http://{host}:{port}", region_name="us-east-1",
                            aws_access_key_id=key, aws_secret_access_key=secret)

    iam = client("iam")
    iam.create_user(UserName="tester")
    iam.put_user_policy(UserName="tester", PolicyName="all", PolicyDocument=json.dumps(POLICY))
    key = iam.create_access_key(UserName="tester")["AccessKey"]
    client("s3").create_bucket(Bucket=BUCKET)
    return (host, port), key, client("s3", key["AccessKeyId"], key["SecretAccessKey"])


def answer_to(command, faults, s3):
    if command["do"] == "faults":
        faults.set(command)
    if command["do"] == "keys":
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]
    if command["do"] == "uploads":
        return [entry["Key"] for entry in
                s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])]
    if command["do"] == "put":
        s3.put_object(Bucket=BUCKET, Key=command["key"], Body=command["text"].encode())
    return {"seen": faults.seen, "spoiled": faults.spoiled}


def main():
    store, key, s3 = start_store()
    faults = Faults()
    loop = asyncio.new_event_loop()
    serving = loop.run_until_complete(
        asyncio.start_server(Proxy(store, faults).serve, "127.0.0.1", 0))
    port = serving.sockets[0].getsockname()[1]
    threading.Thread(target=loop.run_forever, daemon=True).start()
    print(json.dumps({"store": f"http://{store[0]}:{store[1]}", "proxy": f"http://127.0.0.1:{port}",
                      "bucket": BUCKET, "access_key": key["AccessKeyId"],
                      "secret_key": key["SecretAccessKey"]}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer_to(json.loads(line), faults, s3)), flush=True)
    os._exit(0)  # With all its threads.


if __name__ == "__main__":
    main()
