"""Reach one MLflow server: who it is, with which credentials, and patience while it does not answer.

Every call goes through :meth:`TrackingClient.call`. It retries what may pass (a dead connection, a 5xx, a
full connection pool behind the server) and turns everything else into a :class:`TrackingError`. MLflow reads
credentials from the process environment only; they are put there for the length of a call and taken away
again.
"""

from __future__ import annotations

import json
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlsplit, urlunsplit

from fleetsieve_airflow.errors import TrackingError

if TYPE_CHECKING:
    from mlflow import MlflowClient

Result = TypeVar("Result")


class Log(Protocol):
    """The little of a logger that is used here: Airflow's and the standard one have no common type."""

    def warning(self, message: str, /, *args: object) -> Any:
        """Log a warning."""


#: How long a call goes on being retried: a restart of the server or a failover of its database is over by
#: then.
RETRY_FOR_S = 180.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 10.0
_MESSAGE_MAX = 300
_SERVER_ERROR = 500
_RETRIED_STATUS = frozenset({408, 425, 429})
# MLflow answers 400 to any trouble with its database; these words tell the passing kind from a wrong request.
# Integrity errors pass because two writers of one tag meet there: the second try finds it written.
_PASSING_WORDS = (
    *("QueuePool limit", "database is locked", "deadlock", "too many connections", "too many clients"),
    *("IntegrityError", "UniqueViolation"),
)
_HOPELESS_WORDS = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER", "No connection adapters")
_HINTS = {
    401: "Check login and password, or the token, of the MLflow connection.",
    403: "The account lacks the right, or the server's --allowed-hosts lacks the name it is called by.",
    404: "Check host and path of the MLflow connection.",
}
_CREDENTIALS = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
# One try per request: a second layer of retries would sleep inside ours. The rest keeps task logs readable.
_BEHAVIOUR = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
_EXTRAS = {
    "insecure_tls": "MLFLOW_TRACKING_INSECURE_TLS",
    "server_cert_path": "MLFLOW_TRACKING_SERVER_CERT_PATH",
    "client_cert_path": "MLFLOW_TRACKING_CLIENT_CERT_PATH",
    "workspace": "MLFLOW_WORKSPACE",
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrackingServer:
    """Where MLflow is and how to be let in. Secrets do not show in its text.

    :param uri: tracking URI, e.g. ``https://mlflow.example.com`` or ``sqlite:////var/mlflow.db``.
    :param ui_url: address of its pages as people's browsers see it; empty where there are none.
    :param settings: further MLflow environment variables.
    """

    uri: str
    username: str = ""
    password: str = ""
    token: str = ""
    ui_url: str = ""
    settings: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"TrackingServer({self.shown_uri!r})"

    @property
    def shown_uri(self) -> str:
        """The URI for messages, without the password that a database URI holds."""
        parts = urlsplit(self.uri)
        return (
            urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if parts.netloc else self.uri
        )

    def environment(self) -> dict[str, str | None]:
        """Return the variables MLflow shall see; None removes one."""
        values: dict[str, str | None] = {**_BEHAVIOUR, **dict(self.settings)}
        if self.username or self.password or self.token:
            # All three: a leftover of the process would win over, or mix with, the connection's.
            secrets = (self.username, self.password, self.token)
            values |= {name: value or None for name, value in zip(_CREDENTIALS, secrets, strict=True)}
        return values


def server_at(tracking_uri: str, *, ui_url: str = "", **fields: Any) -> TrackingServer:
    """Return the server at a tracking URI; credentials inside an http(s) address are taken out of it.

    :raises TrackingError: the URI is empty or of a kind that cannot be a tracking store.
    """
    uri = tracking_uri.strip()
    parts = urlsplit(uri)
    if not parts.scheme or (parts.scheme in ("http", "https") and not parts.hostname):
        raise TrackingError(
            f"MLflow tracking URI {tracking_uri!r} is no address.",
            hint="Give http(s)://host:port of an MLflow server, or sqlite:////absolute/path.db.",
        )
    if parts.scheme not in ("http", "https"):
        return TrackingServer(uri=uri, ui_url=ui_url, **fields)
    inside = {"username": parts.username or "", "password": parts.password or ""}
    bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")
    given = {name: value for name, value in fields.items() if value}
    return TrackingServer(uri=bare, ui_url=(ui_url or bare).rstrip("/"), **{**inside, **given})


def server_of(connection: Any) -> TrackingServer:
    """Return the server that an Airflow connection names.

    Host is a whole URI, or a host name to which scheme (``schema``, else http) and port are added. Extra may
    hold ``token``, ``ui_url`` (address for browsers where it differs), ``insecure_tls``,
    ``server_cert_path``, ``client_cert_path`` and ``workspace``.

    :raises TrackingError: the connection has no host, or one that is no address.
    """
    host, extra = (connection.host or "").strip(), dict(connection.extra_dejson or {})
    if not host:
        raise TrackingError(
            f"Connection {connection.conn_id!r} has no host.",
            hint="Set its host to http(s)://host:port of the MLflow server.",
        )
    if "://" not in host:
        host = f"{connection.schema or 'http'}://{host}"
    parts = urlsplit(host)
    if connection.port and parts.scheme in ("http", "https") and not parts.port:
        host = urlunsplit(parts._replace(netloc=f"{parts.netloc}:{connection.port}"))
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in extra.items()}
    return server_at(
        host,
        ui_url=texts.get("ui_url", ""),
        username=connection.login or "",
        password=connection.password or "",
        token=texts.get("token", ""),
        settings=tuple((variable, texts[name]) for name, variable in _EXTRAS.items() if texts.get(name)),
    )


class _SharedEnvironment:
    """Lends the process environment to one server's calls at a time.

    Calls with equal settings run side by side; a call with other settings waits for them to end. Without it
    two hooks with different connections in one process (the plugin, a triggerer) would send each other's
    password.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._borrowers = 0
        self._lent: Mapping[str, str | None] = {}
        self._before: dict[str, str | None] = {}

    @contextmanager
    def lent(self, settings: Mapping[str, str | None]) -> Iterator[None]:
        with self._changed:
            while self._borrowers and self._lent != settings:
                self._changed.wait()
            if not self._borrowers:
                self._before = {name: os.environ.get(name) for name in settings}
                self._lent = settings
                _set_environment(settings)
            self._borrowers += 1
        try:
            yield
        finally:
            with self._changed:
                self._borrowers -= 1
                if not self._borrowers:
                    _set_environment(self._before)
                    self._changed.notify_all()


def _set_environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


_ENVIRONMENT = _SharedEnvironment()


class TrackingClient:
    """An ``MlflowClient`` that waits for a server that is down or full.

    :param retry_for_s: seconds after which a call that keeps failing is given up.
    :param sleep: waits that many seconds; a test may not.
    """

    def __init__(
        self,
        server: TrackingServer,
        *,
        retry_for_s: float = RETRY_FOR_S,
        sleep: Callable[[float], None] = time.sleep,
        log: Log | None = None,
    ) -> None:
        self.server = server
        self.retry_for_s = retry_for_s
        self._sleep = sleep
        self._log = log or logging.getLogger(__name__)
        self._client: MlflowClient | None = None

    def call(
        self,
        what: str,
        function: Callable[[MlflowClient], Result],
        *,
        again: Callable[[MlflowClient], Result] | None = None,
    ) -> Result:
        """Run ``function`` with the client until it succeeds, fails for good, or the time is up.

        :param what: the call in words for logs and errors, e.g. ``open campaign 2026-11-30-weekly``.
        :param again: what later tries run instead, where a try whose answer was lost may have done the work.
        :raises TrackingError: refused, or no answer within ``retry_for_s``.
        """
        give_up, tries = time.monotonic() + self.retry_for_s, 0
        while True:
            try:
                with _ENVIRONMENT.lent(self.server.environment()):
                    return (again or function if tries else function)(self.connected())
            except Exception as error:
                if not is_passing(error):
                    raise self._refused(what, error) from error
                wait_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2**tries) * random.uniform(0.5, 1.0)  # noqa: S311
                if time.monotonic() + wait_s > give_up:
                    raise self._unanswered(what, error) from error
                self._log.warning(
                    "MLflow at %s: could not %s, trying again: %s",
                    self.server.shown_uri,
                    what,
                    _first_line(error),
                )
                tries += 1
            self._sleep(wait_s)

    def connected(self) -> MlflowClient:
        """Return MLflow's own client; its first use migrates a database given as URI."""
        if self._client is None:
            from mlflow import MlflowClient

            self._client = MlflowClient(tracking_uri=self.server.uri)
        return self._client

    def _refused(self, what: str, error: Exception) -> Exception:
        if not is_mlflow_error(error):
            return error
        return TrackingError(
            f"MLflow at {self.server.shown_uri} refused to {what}: {_first_line(error)}",
            hint=_HINTS.get(http_status(error) or 0, ""),
        )

    def _unanswered(self, what: str, error: Exception) -> TrackingError:
        return TrackingError(
            f"MLflow at {self.server.shown_uri} could not {what} within {self.retry_for_s:g} s: "
            f"{_first_line(error)}",
            hint="Retry the task when the server is back: nothing that was finished is lost.",
        )


def is_passing(error: Exception) -> bool:
    """Return whether a failed call may succeed later without any change on our side."""
    text = str(error)
    if any(word in text for word in _HOPELESS_WORDS):
        return False
    if any(word in text for word in _PASSING_WORDS):
        return True
    status = http_status(error)
    if status is not None:
        return status >= _SERVER_ERROR or status in _RETRIED_STATUS
    return is_mlflow_error(error) or isinstance(error, (ConnectionError, TimeoutError))


def is_mlflow_error(error: Exception) -> bool:
    """Return whether an exception came from talking to MLflow rather than from our own code."""
    from mlflow.exceptions import MlflowException
    from requests.exceptions import RequestException

    return isinstance(error, (MlflowException, RequestException))


def http_status(error: Exception) -> int | None:
    """Return the HTTP status behind a failed call, where there was one."""
    from mlflow.exceptions import MlflowException

    if isinstance(error, MlflowException):
        status = error.get_http_status_code()  # type: ignore[no-untyped-call]
        return int(status)
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def _first_line(error: Exception) -> str:
    """Return the cause of a failed call: what wraps it names the address three times."""
    line = next(iter(str(error).splitlines()), type(error).__name__)
    _, wrapped, cause = line.rpartition("(Caused by ")
    return (cause.rstrip(")") if wrapped else line)[:_MESSAGE_MAX]
