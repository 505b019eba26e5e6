"""Errors: what obstore or fsspec raised in, one exception that names the URL out.

Guarantees: no password and no query in a message; each is an OSError, and the built-in kind that a caller would
expect: FileNotFoundError for 404 and 410, PermissionError for 401 and 403, TimeoutError for a server that is silent.
"""

import http
import re
from typing import Any

CUT = "the connection was cut in the middle of the body"
BEHIND_THE_END = "the byte range begins behind the end of the file"
# What to say for what obstore's error holds, the first that is found. It only chooses words (and TimeoutError): what
# is tried again does not depend on it.
REASONS = (
    ("RangeNotSupported", "the server ignores byte ranges. Read it whole"),
    ("UnexpectedRange", "the server sent another range than the one asked for"),
    ("InvalidRange", BEHIND_THE_END),
    ("ContentRange", "the server sent a part without saying which (Content-Range)"),
    (
        "MissingContentLength",
        "the server sent no Content-Length, so a body cut short could not be told from a whole one",
    ),
    ("TooManyRedirects", "more than ten redirects"),
    ("BareRedirect", "a redirect that leads nowhere: for S3, the bucket is in another region; pass region"),
    ("MissingAccount", "no storage account. Pass account_name in storage_options"),
    ("dns error", "the host name cannot be resolved"),
    ("BadScheme", "http is not allowed here. Pass client_options={'allow_http': True}"),
    ("Certificate", "the server's certificate is not trusted"),
    ("IncompleteBody", CUT),
    ("Parse(", "what the server answered is not HTTP"),
    ("InvalidMessage", "the TLS handshake failed; is it http instead of https?"),
    ("IncompleteMessage", "the connection was closed before an answer came"),
)
STATUS = re.compile(r"non-2xx status code: (\d{3})")
CODE = re.compile(r"<Code>(\w+)</Code>")  # of S3 and Azure, more telling than the status
RETRIES = re.compile(r", after (\d+) retries, max_retries")
# obstore asks a cloud's metadata service where nobody gave credentials; it answers on the cloud's own machines only.
METADATA = re.compile(r"169\.254\.169\.254|performing PUT \S+/latest/api/token")
SYSTEM = re.compile(r'Os \{\s*code: \d+,\s*kind: \w+,\s*message: "([^"]+)"')
STATUSES_TO_RETRY = frozenset((408, 429))  # and 500 to 599


class RemoteError(OSError):
    """A URL could not be read.

    Args:
        message: names the URL, and says why.
        url: without password and query, as in ``message``.
        status: the HTTP status, if there was one.
        num_attempts: how many requests were made.
    """

    def __init__(
        self, message: str, url: str | None = None, status: int | None = None, num_attempts: int | None = None
    ) -> None:
        super().__init__(message)  # one argument: so it is pickled, and so torch raises it out of a worker process
        self.url, self.status, self.num_attempts = url, status, num_attempts


class RemoteNotFoundError(RemoteError, FileNotFoundError):
    """There is nothing at this URL: 404 or 410, a bucket or a key that does not exist."""


class RemotePermissionError(RemoteError, PermissionError):
    """The credentials are missing, wrong, or not enough: 401 or 403."""


class RemoteTimeoutError(RemoteError, TimeoutError):
    """The server was silent for too long, or the whole took too long."""


class AttemptError(Exception):
    """One attempt failed: why, and whether another may succeed. Never leaves this package."""

    def __init__(self, reason: str, is_transient: bool, kind: type[RemoteError], status: int | None, num: int) -> None:
        super().__init__(reason)
        self.reason, self.is_transient, self.kind, self.status, self.num_attempts = (
            reason,
            is_transient,
            kind,
            status,
            num,
        )

    def error(self, url: str, num_attempts: int, seconds: float) -> RemoteError:
        """What the caller gets to see."""
        attempts = "1 attempt" if num_attempts == 1 else f"{num_attempts} attempts"
        message = f"{url}: {self.reason} ({attempts} in {seconds:.1f} s)"
        return self.kind(message, url, self.status, num_attempts)


def short_body(came: int, wanted: int) -> AttemptError:
    return AttemptError(f"{came} bytes came instead of {wanted}", True, RemoteError, None, 1)


def out_of_range(came: int, wanted: int) -> AttemptError:
    reason = f"the byte range leaves the file: {came} bytes came instead of {wanted}" if came else BEHIND_THE_END
    return AttemptError(reason, False, RemoteError, None, 1)


def from_obstore(error: BaseException, *, in_body: bool) -> AttemptError:
    """What obstore raises for an answer is final: it has tried again itself where that helps. What breaks in a body,
    it resumes only with an ETag; so that is worth another request."""
    text = str(error)
    status = _status_of(error, text)
    num_requests = 1 + sum(int(number) for number in RETRIES.findall(text)[:1])
    reason, kind = _reason(text, status), _kind(status)
    if METADATA.search(text):
        reason = "there are no credentials. Pass them in storage_options, or skip_signature=True for public data"
        kind = RemotePermissionError
    elif status is None and ("Timeout" in text or "TimedOut" in text):
        reason, kind = "the server was silent for too long", RemoteTimeoutError
    elif in_body and "RangeNotSupported" in text:  # obstore wanted to resume the body and could not
        reason = CUT
    return AttemptError(reason, in_body, kind, status, num_requests)


def from_obstore_in_one_go(error: BaseException) -> AttemptError | None:
    """As above, for a request whose head and body were waited for as one. None for what another way of asking may
    change; all that obstore may come to word otherwise is that."""
    text = str(error)
    if "response body error" in text:
        return from_obstore(error, in_body=True)
    is_answer = "Error performing" in text  # or none, after all its attempts
    if is_answer and _status_of(error, text) != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        return from_obstore(error, in_body=False)
    return None


def from_fsspec(error: Exception) -> AttemptError:
    """Filesystems of fsspec raise what their libraries raise; what is not known to be transient is final."""
    status = next((found for name in ("status", "status_code", "code") if (found := _as_status(error, name))), None)
    kind = _kind(status)
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        kind = RemoteNotFoundError
    elif isinstance(error, PermissionError):
        kind = RemotePermissionError
    elif isinstance(error, TimeoutError):
        kind = RemoteTimeoutError
    if status is not None:
        return AttemptError(_words_of(status), _is_transient_status(status), kind, status, 1)
    is_transient = isinstance(error, ConnectionError | TimeoutError | EOFError) or _is_cut(error)
    return AttemptError(f"{type(error).__name__}: {_scrubbed(str(error))}", is_transient, kind, None, 1)


def _reason(text: str, status: int | None) -> str:
    if status == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        return BEHIND_THE_END
    if status is not None:  # first: a page that comes with it may hold any word
        code = CODE.search(text)
        return _words_of(status) + (f", {code[1]}" if code else "")
    for found, words in REASONS:
        if found in text:
            return words
    if system := SYSTEM.search(text):
        return system[1]
    return _scrubbed(text.partition("\n")[0].rpartition(" - ")[2])


def _words_of(status: int) -> str:
    try:
        return f"HTTP status {status} ({http.HTTPStatus(status).phrase})"
    except ValueError:
        return f"HTTP status {status}"


def _scrubbed(text: str) -> str:
    """Without web addresses: they may hold a signature."""
    return re.sub(r"https?://\S+", "(URL)", text)


def _status_of(error: BaseException, text: str) -> int | None:
    if found := STATUS.search(text):
        return int(found[1])
    return http.HTTPStatus.NOT_FOUND.value if isinstance(error, FileNotFoundError) else None


def _kind(status: int | None) -> type[RemoteError]:
    if status in (404, 410):
        return RemoteNotFoundError
    if status in (401, 403):
        return RemotePermissionError
    return RemoteError


def _as_status(error: Any, name: str) -> int | None:
    value = getattr(error, name, None)
    return value if isinstance(value, int) and 400 <= value < 600 else None


def _is_transient_status(status: int) -> bool:
    return status in STATUSES_TO_RETRY or status >= 500


def _is_cut(error: Exception) -> bool:
    """Whether it is aiohttp's error for a broken connection or body; aiohttp is not imported to find out."""
    names = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__}
    return not names.isdisjoint({("aiohttp", "ClientConnectionError"), ("aiohttp", "ClientPayloadError")})
