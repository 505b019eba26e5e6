"""Object stores: an S3 server on loopback (moto's), asked with credentials, without, and by way of a redirect."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from torchstage.remote import Remote, RemoteError

from .servers import Nginx, ScriptedServer
from .ways import WAYS, Read

KEYS = ["plain.bin", "a folder/a b.bin", "100%25.bin", "ü#?&=+.bin"]
CREDENTIALS = {"access_key_id": "me", "secret_access_key": "secret", "region": "us-east-1"}


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The URL of an S3 server with one bucket, ``data``, which holds an object for each of KEYS."""
    boto3: Any = pytest.importorskip("boto3")
    moto_server: Any = pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    names = {"aws_access_key_id": "me", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", **names)
    client.create_bucket(Bucket="data")
    for key in KEYS:
        client.put_object(Bucket="data", Key=key, Body=content_of(key))
    client.close()
    yield f"http://{host}:{port}"
    server.stop()


def content_of(key: str) -> bytes:
    return f"the content of {key}".encode() * 10


def signed(s3: str) -> Remote:
    return Remote(num_retries=1, backoff_seconds=0.01, storage_options={"endpoint": s3, **CREDENTIALS})


@pytest.fixture(params=list(WAYS))
def read(request: pytest.FixtureRequest, s3: str) -> Read:
    return WAYS[request.param](signed(s3))


@pytest.mark.parametrize("key", KEYS)
def test_an_object_comes_by_its_key_as_it_is(read: Read, key: str) -> None:
    assert read(f"s3://data/{key}") == content_of(key)


def test_a_range_is_a_slice(read: Read) -> None:
    content = content_of("plain.bin")
    assert read("s3://data/plain.bin", (4, 20)) == content[4:20]
    assert read("s3://data/plain.bin", (4, None)) == content[4:]


def test_a_range_that_leaves_the_object_is_an_error(read: Read) -> None:
    with pytest.raises(RemoteError, match="the byte range leaves the file"):
        read("s3://data/plain.bin", (4, 10_000))
    with pytest.raises(RemoteError, match="begins behind the end"):
        read("s3://data/plain.bin", (10_000, 10_001))


@pytest.mark.parametrize(("url", "code"), [("s3://data/none", "NoSuchKey"), ("s3://none/plain.bin", "NoSuchBucket")])
def test_a_missing_key_and_a_missing_bucket_are_files_not_found(read: Read, url: str, code: str) -> None:
    with pytest.raises(FileNotFoundError, match=rf"^{url}: HTTP status 404 \(Not Found\), {code} \(1 attempt"):
        read(url)


@pytest.mark.parametrize("way", WAYS)
def test_a_private_object_without_credentials_is_a_permission_error(way: str, s3: str) -> None:
    unsigned = Remote(storage_options={"endpoint": s3, "skip_signature": True})
    with pytest.raises(PermissionError, match=r"^s3://data/plain.bin: HTTP status 403"):
        WAYS[way](unsigned)("s3://data/plain.bin")


def test_the_environment_says_where_the_store_is(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3)
    # its own settings: what the environment says is read once for each store
    assert Remote(num_retries=4).read_bytes("s3://data/plain.bin") == content_of("plain.bin")


def test_without_any_credentials_the_error_says_what_to_pass(
    script: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside a cloud, or where its machine has no role: the metadata service knows none."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    options = {"endpoint": script.url, "metadata_endpoint": script.url}
    with pytest.raises(PermissionError, match=r"there are no credentials.*skip_signature=True"):
        Remote(num_retries=0, storage_options=options).read_bytes("s3://data/plain.bin")


@pytest.mark.parametrize("way", WAYS)
def test_a_gateway_may_lead_to_the_server_that_has_the_object(way: str, nginx: Nginx, script: ScriptedServer) -> None:
    """AIStore's: its proxy, under /s3, answers with a redirect to the target that has the object."""
    body = b"from the target"
    headers = {"etag": '"1"', "last_modified": "Mon, 30 Nov 2026 06:00:00 GMT"}
    script.answers["bucket/a b.bin".replace(" ", "%20")] = lambda client, _: client.send("200 OK", body, **headers)
    gateway = Remote(storage_options={"endpoint": f"{nginx.url}/s3", "skip_signature": True})
    assert WAYS[way](gateway)("s3://bucket/a b.bin") == body


def test_a_server_need_not_send_etags(script: ScriptedServer) -> None:
    """AIStore sends them where a bucket's checksums are MD5, which is not its default."""
    script.answers["bucket/a"] = lambda client, _: client.send("200 OK", b"a")
    store = Remote(storage_options={"endpoint": script.url, "skip_signature": True})
    assert store.read_bytes("s3://bucket/a") == b"a"


def test_options_that_the_store_does_not_know_are_a_value_error() -> None:
    with pytest.raises(ValueError, match=r"s3://data: obstore does not take these storage_options: .*no_such_option"):
        Remote(storage_options={"no_such_option": 1}).read_bytes("s3://data/a")


def test_options_are_not_shown(s3: str) -> None:
    assert "secret" not in repr(signed(s3))


@pytest.mark.parametrize("url", ["gs://bucket/a", "az://container/a"])
def test_other_stores_are_asked_too(url: str, script: ScriptedServer) -> None:
    """Not against their real servers: what is asked, and that an answer comes back."""
    headers = {"etag": '"1"', "last_modified": "Mon, 30 Nov 2026 06:00:00 GMT"}
    for path in ("bucket/a", "account/container/a"):
        script.answers[path] = lambda client, _: client.send("200 OK", b"object", **headers)
    options: dict[str, Any] = {"skip_signature": True}
    if url.startswith("az"):
        options |= {"account_name": "account", "endpoint": f"{script.url}/account"}
    else:
        options |= {"base_url": script.url}
    assert Remote(storage_options=options).read_bytes(url) == b"object"
