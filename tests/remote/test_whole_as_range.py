"""A whole file is asked for as a range, which is cheaper; whatever a server makes of that, the file comes whole."""

import asyncio

import pytest

from torchstage.remote import Remote, RemoteError, fetch_bytes

from .servers import Answer, Client, ScriptedServer

BODY = bytes(range(250)) * 4


def fetched(url: str, remote: Remote | None = None) -> bytes:
    return asyncio.run(fetch_bytes(url) if remote is None else remote.fetch_bytes(url))


def test_a_whole_file_is_asked_for_as_a_range(script: ScriptedServer) -> None:
    script.answers["x"] = lambda client, _: client.send("200 OK", BODY)
    assert fetched(f"{script.url}/x") == BODY
    assert [" bytes=0-" in head for head in script.heads] == [True]


def test_not_if_told_so(script: ScriptedServer) -> None:
    script.answers["x"] = lambda client, _: client.send("200 OK", BODY)
    assert fetched(f"{script.url}/x", Remote(whole_as_range=False)) == BODY
    assert ["range:" in head for head in script.heads] == [False]


def test_not_through_a_proxy_which_may_keep_whole_files_only(
    script: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", script.url)
    script.answers["http://some.invalid/x"] = lambda client, _: client.send("200 OK", BODY)
    assert fetched("http://some.invalid/x") == BODY
    assert ["range:" in head for head in script.heads] == [False]


def test_a_server_that_ignores_ranges_is_asked_for_one_once(script: ScriptedServer) -> None:
    for name in ("a", "b", "c"):
        script.answers[name] = lambda client, _: client.send_exactly("200 OK", client.path.encode() + BODY)
    for name in ("/a", "/b", "/c"):
        assert fetched(script.url + name) == name.encode() + BODY
    assert ["range:" in head for head in script.heads] == [True, False, False, False]


def part(said: str | None, sent: bytes) -> Answer:
    headers = {} if said is None else {"content_range": said}
    return lambda client, _: client.send_exactly("206 Partial Content", sent, **headers)


@pytest.mark.parametrize(
    "to_a_range",
    [
        part("bytes 0-9/1000", BODY[:10]),
        part("bytes 10-999/1000", BODY[10:]),
        part("bytes 0-999/*", BODY),
        part(None, BODY),
        lambda client, _: client.send("416 Range Not Satisfiable"),
        lambda client, _: client.connection.sendall(
            b"HTTP/1.1 206 Part\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        ),
    ],
    ids=["begin", "end", "unknown size", "no range", "refused", "no length"],
)
def test_a_server_that_answers_a_range_oddly_is_asked_for_the_whole(script: ScriptedServer, to_a_range: Answer) -> None:
    def answer(client: Client, num_before: int) -> None:
        if client.first is None:
            client.send("200 OK", BODY)
        else:
            to_a_range(client, num_before)

    script.answers["x"] = answer
    assert fetched(f"{script.url}/x", Remote(num_retries=0)) == BODY


def test_errors_are_not_asked_for_twice(script: ScriptedServer) -> None:
    for status in (400, 403, 404, 503):
        script.answers[str(status)] = lambda client, _: client.send(f"{client.path[1:]} No")
        with pytest.raises(RemoteError, match=f"HTTP status {status}"):
            fetched(f"{script.url}/{status}", Remote(num_retries=0))
    assert set(script.num_requests.values()) == {1}


def test_a_body_that_is_cut_is_asked_for_again_without_a_range(script: ScriptedServer) -> None:
    def answer(client: Client, num_before: int) -> None:
        if num_before == 0:
            client.send("200 OK", BODY[:10], content_length=str(len(BODY)))
            client.hang_up()
        else:
            client.send("200 OK", BODY)

    script.answers["x"] = answer
    assert fetched(f"{script.url}/x", Remote(backoff_seconds=0.01)) == BODY
    assert ["range:" in head for head in script.heads] == [True, False]
