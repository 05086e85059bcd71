"""A review of a run, as an application and as a server in the background."""

import threading
from contextlib import contextmanager

import uvicorn

from spml.review.app import ReviewApp, open_decisions
from spml.review.web import Server

TOKEN, HOST = "a-secret", "127.0.0.1:8733"


@contextmanager
def review_app(run, path, who="Ada"):
    """A review whose decisions are in `path`."""
    with open_decisions(run, path) as decisions:
        app = ReviewApp(run, decisions, who)
        try:
            yield app
        finally:
            app.close()


@contextmanager
def serving(application, port=None):
    """The address of an application that is served by a thread."""
    server = Server(port=port)
    config = uvicorn.Config(
        application(server.token, server.accepts), log_level="warning", lifespan="off", server_header=False
    )
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [server.socket]}, daemon=True)
    thread.start()
    try:
        yield server.address
    finally:
        running.should_exit = True
        thread.join(10)
        server.socket.close()
