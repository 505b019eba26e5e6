"""Servers and networks that break: never short data, never other bytes, and what passes is tried again."""

import pytest

from torchstage.remote import Remote, RemoteError

from .servers import Answer, Client, Nginx, ScriptedServer
from .ways import IMPATIENT, PATIENT, WAYS, Read

BODY = bytes(range(250)) * 40


@pytest.fixture(params=list(WAYS))
def read(request: pytest.FixtureRequest) -> Read:
    return WAYS[request.param]()


def cut(client: Client) -> None:
    """Half of the body, and an end."""
    client.send("200 OK", BODY[:5000], content_length=str(len(BODY)))
    client.hang_up()


def broken_once(broken: Answer) -> Answer:
    def answer(client: Client, num_before: int) -> None:
        if num_before == 0:
            broken(client, num_before)
        else:
            client.send("200 OK", BODY)

    return answer


def say_half_then_nothing(client: Client, _: int) -> None:
    client.send("200 OK", BODY[:5000], content_length=str(len(BODY)))
    client.wait_until_it_hangs_up()


@pytest.mark.parametrize("behind_nginx", [True, False], ids=["nginx", "direct"])
def test_a_body_that_is_cut_is_asked_for_again(
    read: Read, nginx: Nginx, script: ScriptedServer, behind_nginx: bool
) -> None:
    script.answers["cut.bin"] = broken_once(lambda client, _: cut(client))
    url = f"{nginx.url}/script" if behind_nginx else script.url
    assert read(f"{url}/cut.bin") == BODY
    assert script.num_requests == {"cut.bin": 2}


def test_a_body_that_is_always_cut_is_an_error(read: Read, nginx: Nginx, script: ScriptedServer) -> None:
    script.answers["cut.bin"] = lambda client, _: cut(client)
    with pytest.raises(RemoteError, match=r"cut in the middle of the body \(3 attempts in"):
        read(f"{nginx.url}/script/cut.bin")
    assert script.num_requests == {"cut.bin": 3}


def test_no_attempt_for_a_body_begins_after_the_total_time(script: ScriptedServer) -> None:
    script.answers["cut.bin"] = lambda client, _: cut(client)
    hurried = Remote(num_retries=10_000, backoff_seconds=0.01, max_backoff_seconds=0.01, total_seconds=0.3)
    with pytest.raises(RemoteError, match="cut in the middle of the body"):
        hurried.read_bytes(f"{script.url}/cut.bin")
    assert 1 < script.num_requests["cut.bin"] < 10_000


def test_a_body_with_an_etag_is_resumed_where_it_was_cut(read: Read, script: ScriptedServer) -> None:
    def answer(client: Client, _: int) -> None:
        if client.first:
            client.send("200 OK", BODY, etag='"1"')
        else:
            client.send("200 OK", BODY[:5000], content_length=str(len(BODY)), etag='"1"')
            client.hang_up()

    script.answers["cut.bin"] = answer
    assert read(f"{script.url}/cut.bin") == BODY
    assert script.num_requests == {"cut.bin": 2}


def test_a_file_that_changed_while_it_came_is_read_anew_and_not_mixed(read: Read, script: ScriptedServer) -> None:
    new = BODY[::-1]

    def answer(client: Client, num_before: int) -> None:
        if num_before == 0:
            client.send("200 OK", BODY[:5000], content_length=str(len(BODY)), etag='"old"')
            client.hang_up()
        else:
            client.send("200 OK", new, etag='"new"')

    script.answers["cut.bin"] = answer
    assert read(f"{script.url}/cut.bin") == new


def test_a_body_with_an_etag_whose_server_ignores_ranges_is_read_anew(read: Read, script: ScriptedServer) -> None:
    def answer(client: Client, num_before: int) -> None:
        if num_before == 0:
            client.send_exactly("200 OK", BODY[:5000], content_length=str(len(BODY)), etag='"1"')
            client.hang_up()
        else:
            client.send_exactly("200 OK", BODY, etag='"1"')

    script.answers["cut.bin"] = answer
    assert read(f"{script.url}/cut.bin") == BODY


@pytest.mark.parametrize("end", [Client.hang_up, Client.reset], ids=["end", "reset"])
def test_a_connection_that_breaks_before_an_answer_is_made_again(read: Read, script: ScriptedServer, end) -> None:
    script.answers["broken.bin"] = broken_once(lambda client, _: end(client))
    assert read(f"{script.url}/broken.bin") == BODY
    assert script.num_requests == {"broken.bin": 2}


def test_connections_that_always_break_are_an_error(read: Read, script: ScriptedServer) -> None:
    script.answers["broken.bin"] = lambda client, _: client.reset()
    with pytest.raises(RemoteError, match=r"[Rr]eset.* \(3 attempts in") as found:
        read(f"{script.url}/broken.bin")
    assert found.value.num_attempts == 3
    assert script.num_requests == {"broken.bin": 3}


@pytest.mark.parametrize("way", WAYS)
def test_a_body_that_stops_coming_is_asked_for_again(way: str, script: ScriptedServer) -> None:
    script.answers["stops.bin"] = broken_once(say_half_then_nothing)
    assert WAYS[way](IMPATIENT)(f"{script.url}/stops.bin") == BODY
    assert script.num_requests == {"stops.bin": 2}


@pytest.mark.parametrize("way", WAYS)
def test_a_body_that_always_stops_is_a_timeout(way: str, script: ScriptedServer) -> None:
    script.answers["stops.bin"] = say_half_then_nothing
    with pytest.raises(TimeoutError, match=r"silent for too long \(2 attempts in"):
        WAYS[way](IMPATIENT)(f"{script.url}/stops.bin")


def test_a_server_where_nobody_listens_is_an_error(read: Read) -> None:
    with pytest.raises(RemoteError, match=r"^http://127.0.0.1:1/x.bin: .*refused.* \(3 attempts in"):
        read("http://127.0.0.1:1/x.bin")


def part(said: str, sent: bytes) -> Answer:
    return lambda client, _: client.send_exactly("206 Partial Content", sent, content_range=said)


@pytest.mark.parametrize(
    ("answer", "words", "num_requests"),
    [
        (part("bytes 0-3/10", b"0123"), "another range", 1),
        (part("bytes 2-5/10", b"23"), "2 bytes came instead of 4", 3),  # its length, and not the range's
        (part("bytes 2-5/10", b"234567"), "6 bytes came instead of 4", 3),
        (part("bytes 2-5/*", b"2345"), "without saying which", 1),
        (lambda client, _: client.send_exactly("206 Partial Content", b"2345"), "without saying which", 1),
        (lambda client, _: client.send_exactly("200 OK", b"0123456789"), "ignores byte ranges", 1),
        (lambda client, _: client.send_exactly("200 OK", b"2345"), "ignores byte ranges", 1),  # right, but who knows
    ],
)
def test_a_part_that_is_not_the_one_asked_for_is_an_error(
    read: Read, script: ScriptedServer, answer: Answer, words: str, num_requests: int
) -> None:
    script.answers["part.bin"] = answer
    with pytest.raises(RemoteError, match=words):
        read(f"{script.url}/part.bin", (2, 6))
    # fetch_bytes asks once more, in the slower way that tells what is the matter
    assert script.num_requests["part.bin"] - num_requests in (0, 1)


def test_a_server_that_does_not_speak_http_is_an_error(read: Read, script: ScriptedServer) -> None:
    script.answers["x"] = lambda client, _: client.connection.sendall(b"HELLO\r\n\r\n")
    with pytest.raises(RemoteError, match="not HTTP"):
        read(f"{script.url}/x")


def test_a_server_that_does_not_speak_tls_is_an_error(nginx: Nginx) -> None:
    with pytest.raises(RemoteError, match=r"^https://.*TLS"):
        PATIENT.read_bytes(nginx.url.replace("http", "https") + "/x")


def test_a_body_of_unknown_length_is_an_error(read: Read, script: ScriptedServer) -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    script.answers["x"] = lambda client, _: client.connection.sendall(chunked)
    with pytest.raises(RemoteError, match="no Content-Length"):
        read(f"{script.url}/x")


def test_a_circle_of_redirects_is_an_error(read: Read, script: ScriptedServer) -> None:
    script.answers["x"] = lambda client, _: client.send("302 Found", location="/x")
    with pytest.raises(RemoteError, match="more than ten redirects"):
        read(f"{script.url}/x")
