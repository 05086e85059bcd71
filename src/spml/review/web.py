"""The web server of review and annotation: one page, its files and a JSON interface, for people with the address.

The address contains a random token. Everything else gets an empty reply. A page of another site can neither read nor
post: requests need the token, the right Host and, if they change something, the Origin of the page itself.
"""

from __future__ import annotations

import ipaddress
import secrets
import signal
import socket
import sys
import traceback
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from types import FrameType
from typing import TYPE_CHECKING, Any

from spml.errors import InputError, install_command
from spml.json_text import parse_json

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

PORT = 8733
MOST_BYTES = 2**21  # of a request
_LONGEST_PATH = 1000  # characters

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}

Reply = Mapping[str, Any] | bytes | None
"""JSON, an image (WebP), or nothing (404)."""


class Unsaved(Exception):
    """An answer could not be written; the page keeps it and tries again."""


class Guard:
    """Lets a request pass if it has the token, the right Host and, for changes, the right Origin.

    Parameters
    ----------
    app : ASGI application
    token : str
    hosts : callable
        Whether a Host header is one of this server's.
    """

    def __init__(self, app: ASGIApp, token: str, hosts: Callable[[str], bool]) -> None:
        self.app, self.token, self.hosts = app, token.encode(), hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        token, _, rest = scope["path"].lstrip("/").partition("/")
        if not secrets.compare_digest(token.encode("utf-8", "replace"), self.token) or not self._allowed(scope):
            await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
            return

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                if not any(name == b"cache-control" for name, _ in message["headers"]):
                    headers.append((b"cache-control", b"no-store"))
                message = {**message, "headers": [*message["headers"], *headers]}
            await send(message)

        await self.app({**scope, "path": f"/{rest}", "raw_path": f"/{rest}".encode()}, receive, send_secured)

    def _allowed(self, scope: Scope) -> bool:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        if not self.hosts(host) or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return False
        if len(scope["path"]) > _LONGEST_PATH:  # Python does not read numbers of thousands of digits
            return False
        if scope["method"] in ("GET", "HEAD"):
            return True
        return (
            scope["method"] == "POST"
            and headers.get("origin") == f"{scope['scheme']}://{host}"
            and headers.get("content-type", "").partition(";")[0] == "application/json"
            and headers.get("content-length", "").isdecimal()
            and len(headers["content-length"]) < 10
            and int(headers["content-length"]) <= MOST_BYTES
        )


def application(
    page: str,
    read: Mapping[str, Callable[[dict[str, str]], Reply]],
    write: Mapping[str, Callable[[dict[str, Any]], Reply]],
    *,
    token: str,
    hosts: Callable[[str], bool],
) -> ASGIApp:
    """An ASGI application.

    Parameters
    ----------
    page : str
        File of `spml/review/static` that is the page.
    read : mapping
        By path, such as "api/rows/{row:int}": a function of the path's and the query's values.
    write : mapping
        By path: a function of the JSON object that was posted.
    token : str
        First part of every path.
    hosts : callable
        Whether a Host header is one of this server's.
    """
    from starlette.applications import Starlette
    from starlette.routing import Route

    routes = [Route("/", _file(page)), *(Route(f"/static/{name}", _file(name)) for name in static_files())]
    routes += [Route(f"/{path}", _reader(function)) for path, function in read.items()]
    routes += [Route(f"/{path}", _writer(function), methods=["POST"]) for path, function in write.items()]
    app: Starlette = Starlette(routes=routes)
    return Guard(app, token, hosts)


def static_files() -> list[str]:
    """Names of the files that the page consists of."""
    return sorted(file.name for file in (files("spml.review") / "static").iterdir() if file.is_file())


def _file(name: str) -> Callable[[Request], Any]:
    from starlette.responses import Response

    content = (files("spml.review") / "static" / name).read_bytes()
    kind = _TYPES["." + name.rpartition(".")[2]]
    return lambda request: Response(content, media_type=kind)


def _reader(function: Callable[[dict[str, str]], Reply]) -> Callable[[Request], Any]:
    def reply(request: Request) -> Any:
        return _reply(lambda: function({**request.query_params, **request.path_params}))

    return reply


def _writer(function: Callable[[dict[str, Any]], Reply]) -> Callable[[Request], Any]:
    from starlette.concurrency import run_in_threadpool

    async def reply(request: Request) -> Any:
        body = await request.body()

        def act() -> Reply:
            try:
                posted = parse_json(body)
            except ValueError:
                posted = None
            if not isinstance(posted, dict):
                raise InputError("the request is not a JSON object")
            return function(posted)

        return await run_in_threadpool(_reply, act)

    return reply


def _reply(act: Callable[[], Reply]) -> Any:
    from starlette.responses import JSONResponse, Response

    try:
        reply = act()
    except Unsaved as error:
        return JSONResponse({"error": str(error)}, status_code=503)
    except InputError as error:
        return JSONResponse({"error": str(error)}, status_code=400)
    except Exception:
        traceback.print_exc(file=sys.stderr)
        return JSONResponse({"error": "the server failed; its terminal shows why"}, status_code=500)
    if reply is None:
        return Response(status_code=404)
    if isinstance(reply, bytes):
        return Response(reply, media_type="image/webp", headers={"cache-control": "private, max-age=86400"})
    return JSONResponse(reply)


# Serving


class Server:
    """A bound address with a random token. `run` serves until Ctrl-C.

    Parameters
    ----------
    host : str
        Address to bind.
    port : int, optional
        By default 8733, or any free port if that is taken.

    Raises
    ------
    InputError
        If the address cannot be bound, or the extra `review` is not installed.
    """

    def __init__(self, host: str = "127.0.0.1", port: int | None = None) -> None:
        check_installed()
        self.host, self.token = host, secrets.token_urlsafe(24)
        self.socket = _bind(host, port)
        self.port = int(self.socket.getsockname()[1])

    @property
    def is_local(self) -> bool:
        """Whether only this computer can connect."""
        return _is_loopback(self.host)

    @property
    def address(self) -> str:
        """The address to open in a browser."""
        return f"http://{_reachable(self.host)}:{self.port}/{self.token}/"

    def accepts(self, host: str) -> bool:
        """Whether a Host header names this server. Names of other sites are refused, even if they lead here."""
        name, _, port = host.rpartition(":")
        if port != str(self.port):
            return False
        if name in ("127.0.0.1", "localhost", "[::1]", self.host):
            return True
        return not self.is_local and (_is_address(name.strip("[]")) or name == socket.gethostname())

    def run(self, app: ASGIApp, *, browser: bool) -> None:
        """Serve until Ctrl-C."""
        import uvicorn

        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, lifespan="off", ws="none",
            timeout_graceful_shutdown=2, proxy_headers=False,
        )  # fmt: skip
        if browser:
            webbrowser.open(self.address)
        server = uvicorn.Server(config)
        # uvicorn raises the signal again once it has stopped; here Ctrl-C is the usual end, not an interruption.
        server.capture_signals = lambda: _stopped_by_signals(server.handle_exit)  # type: ignore[method-assign]
        try:
            server.run(sockets=[self.socket])
        finally:
            self.socket.close()


@contextmanager
def _stopped_by_signals(stop: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call `stop` for Ctrl-C and for the signal that ends a process."""
    old = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def check_installed() -> None:
    """Raise `InputError` if the extra `review` is not installed."""
    try:
        import starlette
        import uvicorn  # noqa: F401
    except ImportError:
        raise InputError(f"the page needs the packages starlette and uvicorn: {install_command('review')}") from None
    del starlette


def _bind(host: str, port: int | None) -> socket.socket:
    if not host.strip():  # an empty address would be every address of this computer
        raise InputError("--host is empty: give an address, such as 127.0.0.1, or 0.0.0.0 for other computers")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    tries = [PORT, 0] if port is None else [port]
    for number in tries:
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, number))
            bound.listen(128)
            return bound
        except (OSError, OverflowError, TypeError) as error:  # TypeError: text that cannot be a host name
            bound.close()
            if number == tries[-1]:
                reason = getattr(error, "strerror", None) or str(error)
                raise InputError(f"--host {host} --port {number} cannot be used: {reason}. Choose another") from error
    raise AssertionError("unreachable")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _reachable(host: str) -> str:
    """An address for a browser: of all interfaces, this computer's name."""
    if host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
