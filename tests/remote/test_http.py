"""Web servers: files, ranges, names, redirects and errors, from nginx; what a good server does when all goes well or
when it says no."""

import base64

import pytest

from torchstage.remote import Remote, RemoteError, RemoteNotFoundError, RemotePermissionError

from .servers import Nginx, ScriptedServer
from .ways import IMPATIENT, PATIENT, WAYS, Read


@pytest.fixture(params=list(WAYS))
def read(request: pytest.FixtureRequest) -> Read:
    return WAYS[request.param]()


def test_a_file_comes_whole(read: Read, nginx: Nginx, data: bytes) -> None:
    body = read(f"{nginx.url}/files/some.bin")
    assert type(body) is bytes
    assert body == data


def test_an_empty_file_is_no_bytes(read: Read, nginx: Nginx) -> None:
    (nginx.files / "empty.bin").touch()
    assert read(f"{nginx.url}/files/empty.bin") == b""
    assert read(f"{nginx.url}/files/empty.bin", (0, None)) == b""


@pytest.mark.parametrize("byte_range", [(0, 10), (5, 100), (99_990, 100_000), (99_999, None), (0, None), (0, 100_000)])
def test_a_range_is_a_slice(read: Read, nginx: Nginx, data: bytes, byte_range: tuple[int, int | None]) -> None:
    assert read(f"{nginx.url}/files/some.bin", byte_range) == data[slice(*byte_range)]


def test_an_empty_range_asks_nobody(read: Read) -> None:
    assert read("http://127.0.0.1:1/nobody-listens", (7, 7)) == b""


@pytest.mark.parametrize(
    ("byte_range", "words"),
    [
        ((99_990, 100_001), "10 bytes came instead of 11"),
        ((100_000, 100_001), "begins behind the end"),
        ((100_000, None), "begins behind the end"),
    ],
)
def test_a_range_that_leaves_the_file_is_an_error_and_not_short_data(
    read: Read, nginx: Nginx, data: bytes, byte_range: tuple[int, int | None], words: str
) -> None:
    with pytest.raises(RemoteError, match=words):
        read(f"{nginx.url}/files/some.bin", byte_range)


@pytest.mark.parametrize("byte_range", [(-1, 3), (3, 2)])
def test_a_range_that_is_none_says_how_one_looks(read: Read, byte_range: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"first, one past the last"):
        read("http://127.0.0.1:1/", byte_range)


def test_a_server_that_ignores_ranges_is_an_error_and_not_other_bytes(read: Read, nginx: Nginx, data: bytes) -> None:
    with pytest.raises(RemoteError, match="ignores byte ranges"):
        read(f"{nginx.url}/no-ranges/some.bin", (4, 8))


@pytest.mark.parametrize(
    "path",
    [
        "/echo/plain.bin",
        "/echo/a%20b+c~d.bin",
        "/echo/100%25.bin",
        "/echo/%C3%BC.bin",
        "/echo/a%2Bb%2fc.bin",  # S3 reads a plain + as a space
        "/echo//twice",
        "/echo/at-the-end/",
        "/echo/;a=b,c:@&$!*'()[1]",
        "/echo/q?a=1&b=%2F+%20&b",
        "/echo?",
        "/echo/%FF",
        "/echo/%3Fno-query%23",
    ],
)
def test_a_server_is_asked_for_what_the_url_says(read: Read, nginx: Nginx, path: str) -> None:
    assert read(nginx.url + path).decode() == path.removesuffix("?")


@pytest.mark.parametrize(("said", "asked"), [("/echo/a b", "/echo/a%20b"), ("/echo/ü", "/echo/%C3%BC")])
def test_what_a_url_may_not_hold_is_encoded(read: Read, nginx: Nginx, said: str, asked: str) -> None:
    assert read(nginx.url + said).decode() == asked


def test_a_fragment_is_not_asked_for(read: Read, nginx: Nginx) -> None:
    assert read(f"{nginx.url}/echo/page#part") == b"/echo/page"


def test_redirects_are_followed(read: Read, nginx: Nginx, data: bytes) -> None:
    assert read(f"{nginx.url}/moved/some.bin") == data
    assert read(f"{nginx.url}/moved/some.bin", (8, 16)) == data[8:16]


def test_what_is_not_there_is_a_file_not_found_and_is_asked_for_once(
    read: Read, nginx: Nginx, script: ScriptedServer
) -> None:
    with pytest.raises(FileNotFoundError) as found:
        read(f"{nginx.url}/script/none.bin")
    error = found.value
    assert isinstance(error, RemoteNotFoundError)
    assert (error.url, error.status, error.num_attempts) == (f"{nginx.url}/script/none.bin", 404, 1)
    assert str(error).startswith(f"{nginx.url}/script/none.bin: HTTP status 404 (Not Found) (1 attempt in ")
    assert script.num_requests == {"none.bin": 1}


@pytest.mark.parametrize("status", [401, 403])
def test_what_is_not_allowed_is_a_permission_error_and_is_asked_for_once(
    read: Read, nginx: Nginx, script: ScriptedServer, status: int
) -> None:
    script.answers["closed.bin"] = lambda client, _: client.send(f"{status} No")
    with pytest.raises(PermissionError, match=f"HTTP status {status}") as found:
        read(f"{nginx.url}/script/closed.bin")
    assert isinstance(found.value, RemotePermissionError)
    assert script.num_requests == {"closed.bin": 1}


def test_another_refusal_is_asked_for_once(read: Read, script: ScriptedServer) -> None:
    script.answers["bad.bin"] = lambda client, _: client.send("400 Bad Request", b"<p>non-2xx status code: 404</p>")
    with pytest.raises(RemoteError, match="HTTP status 400") as found:
        read(f"{script.url}/bad.bin")
    assert type(found.value) is RemoteError
    assert script.num_requests == {"bad.bin": 1}


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_server_that_is_busy_is_asked_again(read: Read, nginx: Nginx, script: ScriptedServer, status: int) -> None:
    busy_twice = [f"{status} Busy", f"{status} Busy", "200 OK"]
    script.answers["busy.bin"] = lambda client, num_before: client.send(busy_twice[num_before], b"at last")
    assert read(f"{nginx.url}/script/busy.bin") == b"at last"
    assert script.num_requests == {"busy.bin": 3}


def test_a_server_that_stays_busy_is_an_error_that_counts_the_attempts(
    read: Read, nginx: Nginx, script: ScriptedServer
) -> None:
    script.answers["busy.bin"] = lambda client, _: client.send("503 Busy")
    with pytest.raises(RemoteError, match=r"HTTP status 503 \(Service Unavailable\) \(3 attempts in ") as found:
        read(f"{nginx.url}/script/busy.bin")
    assert (found.value.status, found.value.num_attempts) == (503, 3)
    assert script.num_requests == {"busy.bin": 3}


def test_no_attempt_begins_after_the_total_time(script: ScriptedServer) -> None:
    script.answers["busy.bin"] = lambda client, _: client.send("503 Busy")
    hurried = Remote(num_retries=1000, backoff_seconds=0.01, max_backoff_seconds=0.01, total_seconds=0.2)
    with pytest.raises(RemoteError, match="503"):
        hurried.read_bytes(f"{script.url}/busy.bin")
    assert 1 < script.num_requests["busy.bin"] < 1000


def test_a_slow_server_is_waited_for_while_bytes_come(nginx: Nginx, data: bytes) -> None:
    """30 KB at 20 KB a second: nginx pauses for less than the 0.2 s of patience, and the whole takes longer."""
    patient = Remote(num_retries=0, timeout_seconds=5, total_seconds=60)
    assert patient.read_bytes(f"{nginx.url}/slow/some.bin", (0, 30_000)) == data[:30_000]


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_says_nothing_is_a_timeout(way: str, nginx: Nginx, script: ScriptedServer) -> None:
    script.answers["silent.bin"] = lambda client, _: client.wait_until_it_hangs_up()
    with pytest.raises(TimeoutError, match=r"silent for too long \(2 attempts in "):
        WAYS[way](IMPATIENT)(f"{nginx.url}/script/silent.bin")


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_that_takes_too_long_is_a_timeout_although_bytes_come(way: str, nginx: Nginx, data: bytes) -> None:
    hurried = Remote(num_retries=0, timeout_seconds=30, total_seconds=0.3)
    with pytest.raises(TimeoutError):  # all of it would take 5 s
        WAYS[way](hurried)(f"{nginx.url}/slow/some.bin")


def test_the_name_and_the_password_of_a_url_are_sent_and_not_shown(read: Read, script: ScriptedServer) -> None:
    with pytest.raises(FileNotFoundError) as found:
        read(script.url.replace("://", "://me:pass%40word@") + "/none.bin?token=hidden#hidden")
    assert f"authorization: Basic {base64.b64encode(b'me:pass@word').decode()}\r\n" in script.heads[0]
    assert "/none.bin?token=hidden " in script.heads[0]
    told = f"{found.value!s} {found.value.url} {found.value!r}"
    assert "hidden" not in told
    assert "word" not in told
    assert "me:" not in told
    assert f"{script.url}/none.bin?...:" in told


def test_credentials_are_not_sent_on_to_another_server(
    read: Read, nginx: Nginx, script: ScriptedServer, data: bytes
) -> None:
    """The script's server leads to nginx, and nginx to the script's server."""
    script.answers["there"] = lambda client, _: client.send("307 X", location=f"{nginx.url}/s3/back")
    script.answers["back"] = lambda client, _: client.send("200 OK", b"here")
    assert read(script.url.replace("://", "://me:secret@") + "/there") == b"here"
    assert ["authorization:" in head for head in script.heads] == [True, False]


def test_headers_of_the_callers_are_sent(script: ScriptedServer) -> None:
    script.answers["x"] = lambda client, _: client.send("200 OK", b"x")
    with_token = Remote(client_options={"default_headers": {"Authorization": "Bearer t"}})
    assert with_token.read_bytes(f"{script.url}/x") == b"x"
    assert PATIENT.read_bytes(f"{script.url}/x") == b"x"
    assert ["authorization: Bearer t" in head for head in script.heads] == [True, False]


def test_a_url_without_a_host_says_so(read: Read) -> None:
    with pytest.raises(ValueError, match="needs a host"):
        read("http:///some/file")
