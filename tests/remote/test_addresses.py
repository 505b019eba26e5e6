"""Addresses: which library reads a URL, what shares connections, and what is not shown."""

import pytest

from torchstage.remote.address import address_of


@pytest.mark.parametrize(
    ("url", "reader"),
    [
        ("/data/a.bin", "file"),
        ("data/a.bin", "file"),
        ("C:\\data\\a.bin", "file"),
        ("file:///data/a.bin", "file"),
        ("http://host/a.bin", "obstore"),
        ("HTTPS://host:8443/a.bin", "obstore"),
        ("https://bucket.s3.amazonaws.com/a.bin", "obstore"),
        ("s3://bucket/a.bin", "obstore"),
        ("gs://bucket/a.bin", "obstore"),
        ("az://container/a.bin", "obstore"),
        ("abfss://container@account.dfs.core.windows.net/a.bin", "obstore"),
        ("memory://a.bin", "fsspec"),
        ("hf://datasets/some/set/a.bin", "fsspec"),
        ("sftp://host/a.bin", "fsspec"),
        ("zip://a.bin::https://host/b.zip", "fsspec"),
        ("zip://a.bin::/data/b.zip", "fsspec"),
        ("simplecache::s3://bucket/a.bin", "fsspec"),
        ("https://host/a::b", "obstore"),
    ],
)
def test_the_scheme_says_who_reads(url: str, reader: str) -> None:
    assert address_of(url).reader == reader


@pytest.mark.parametrize(
    ("url", "root", "path"),
    [
        ("https://host/a/b.bin", "https://host", "a/b.bin"),
        ("https://host/a%20b/c%25.bin", "https://host", "a b/c%.bin"),
        ("http://[::1]:80/a.bin", "http://[::1]:80", "a.bin"),
        ("https://host/a.bin?x=1", "https://host?x=1", "a.bin"),  # one token for all files: one store
        ("https://host/a%2Fb", "https://host/a%2Fb", ""),
        ("https://host/a/", "https://host/a/", ""),
        ("https://host", "https://host", ""),
        ("S3://bucket/a%20b?c#d", "s3://bucket", "a%20b?c#d"),  # keys are literal
    ],
)
def test_urls_of_one_server_share_a_store_where_the_path_survives(url: str, root: str, path: str) -> None:
    address = address_of(url)
    assert (address.root, address.path) == (root, path)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://host/a.bin", "https://host/a.bin"),
        ("https://token@host/a.bin", "https://host/a.bin"),
        ("https://me:secret@host/a.bin?sig=secret#secret", "https://host/a.bin?..."),
        ("sftp://me:secret@host/a.bin", "sftp://host/a.bin"),
        ("zip://a::https://me:secret@host/b.zip?sig=secret", "zip://a::https://host/b.zip?..."),
        ("zip://a::https://host/b.zip?sig=secret::more", "zip://a::https://host/b.zip?...::more"),
        ("abfss://container@account.dfs.core.windows.net/a", "abfss://container@account.dfs.core.windows.net/a"),
    ],
)
def test_secrets_are_not_shown(url: str, shown: str) -> None:
    assert address_of(url).shown == shown


@pytest.mark.parametrize("key", ["a//b", "a/", "/a", "a/../b", "./a", "a\nb"])
def test_a_key_that_obstore_would_read_as_another_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="obstore cannot read a key with"):
        address_of(f"s3://bucket/{key}")


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "s3:///key"])
def test_a_url_of_no_object_says_how_one_looks(url: str) -> None:
    with pytest.raises(ValueError, match="an object's URL is s3://bucket/key"):
        address_of(url)
