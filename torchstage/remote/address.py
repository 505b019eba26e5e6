"""Address: a URL in, who reads it and what to ask for out.

Guarantees: what is asked of a web server is, character for character, what the URL says; ``shown`` holds no password
and no query, since presigned URLs carry their signature there.
"""

import os
import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote, unquote, urlsplit
from urllib.request import url2pathname

OBJECT_STORES = frozenset(("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss"))
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")  # two letters or more: C:\ is a drive
PLAIN = re.compile(r"(https?://[\w.-]+(?::\d+)?)/(\w[\w-]*(?:[./]\w[\w-]*)*)", re.ASCII)  # most of the web, in 2 µs
CHAIN = re.compile(r"::[A-Za-z][A-Za-z0-9+.-]*(://|::)")  # fsspec's: zip://a.txt::https://host/b.zip
PASSWORD = re.compile(r"://[^/@\s]*:[^/@\s]*@")

# What obstore sends as it is in a segment of a path, beside letters and digits; everything else it percent-encodes.
SENT_AS_IS = "~+*[]=&;|^:@,$!'()._-"


@dataclass(frozen=True, slots=True)
class Address:
    """``root`` names one store, whose connections are shared; ``path`` is what to ask it for."""

    reader: Literal["file", "obstore", "fsspec"]
    shown: str
    root: str
    path: str
    user_info: str = ""  # "name:password" of an HTTP URL, still percent-encoded


def address_of(url: str | os.PathLike[str]) -> Address:
    """Who reads this URL, and what of it. Raises ValueError for a URL that names nothing to read."""
    text = os.fspath(url)
    if found := PLAIN.fullmatch(text):
        return Address("obstore", text, found[1], found[2])
    if CHAIN.search(text):
        return Address("fsspec", _without_secrets(text), "", text)
    found = SCHEME.match(text)
    if found is None:
        return Address("file", text, "", text)
    scheme = found[1].lower()
    if scheme == "file":
        split = urlsplit(text)
        if split.netloc not in ("", "localhost"):
            raise ValueError(f"{text}: a file URL names a path of this machine, got host '{split.netloc}'")
        return Address("file", text, "", url2pathname(split.path))
    if scheme in ("http", "https"):
        return _web_address(text)
    if scheme in OBJECT_STORES:
        return _store_address(text)
    return Address("fsspec", _without_secrets(text), "", text)


def _web_address(text: str) -> Address:
    """obstore takes a path decoded and encodes it anew. Where that gives the same characters, all paths of a server
    share one store; where not (%2F, an empty segment, a slash at the end), the URL gets a store of its own."""
    split = urlsplit(text)
    user_info, _, host = split.netloc.rpartition("@")
    shown = f"{split.scheme}://{host}{split.path}" + ("?..." if split.query else "")
    if not split.hostname:
        raise ValueError(f"{shown}: a URL needs a host, as in https://host/path")
    query = f"?{split.query}" if split.query else ""
    segments = split.path.removeprefix("/").split("/")
    if all(map(_is_sent_unchanged, segments)):
        path = "/".join(map(unquote, segments))
        return Address("obstore", shown, f"{split.scheme}://{host}{query}", path, user_info)
    return Address("obstore", shown, f"{split.scheme}://{host}{split.path}{query}", "", user_info)


def _is_sent_unchanged(segment: str) -> bool:
    decoded = unquote(segment)
    return _is_name(decoded) and quote(decoded, SENT_AS_IS) == quote(segment, SENT_AS_IS + "%")


def _is_name(segment: str) -> bool:
    """Whether obstore takes it as one segment of a path."""
    return segment not in ("", ".", "..") and "/" not in segment and segment.isprintable()


def _store_address(text: str) -> Address:
    """A key is taken literally, as other clients of object stores do: a "%20" in it stands for three characters."""
    scheme, _, rest = text.partition("://")
    bucket, _, key = rest.partition("/")
    shown = _without_secrets(text)
    if not bucket or not key:
        raise ValueError(f"{shown}: an object's URL is {scheme}://bucket/key")
    if not all(map(_is_name, key.split("/"))):
        raise ValueError(
            f"{shown}: obstore cannot read a key with an empty segment (//, or / at an end), '.', '..' or an "
            "unprintable character. Rename the object, or write a fetch with another client."
        )
    return Address("obstore", shown, f"{scheme.lower()}://{bucket}", key)


def _without_secrets(text: str) -> str:
    """Without "name:password@", and without the query of a web address in a chain."""
    plain = PASSWORD.sub("://", text)
    return re.sub(r"(https?://[^?\s]*)\?.*?(?=::|$)", r"\1?...", plain)
