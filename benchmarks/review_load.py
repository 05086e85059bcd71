"""The review server under load: many clients on this machine that look and answer without a pause.

    python benchmarks/review_load.py RUN --clients 50 --seconds 300

Starts `spml review RUN` with a new database and stops it at the end. Every client asks for the overview, a label, a
picture or a row, and for changes, and then answers. An answer counts as lost if the server confirmed it but the
database does not have it. Prints requests per second, times to reply, failures, and the server's memory after a tenth
of the time and at the end.
"""

import argparse
import http.client
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from spml.review.app import open_decisions
from spml.runs.folder import open_run


@dataclass
class Load:
    """What the clients saw."""

    times: list[float] = field(default_factory=list)
    confirmed: set[int] = field(default_factory=set)
    """Ids of answers."""
    failures: list[str] = field(default_factory=list)
    memory: tuple[int, int] = (0, 0)
    """KiB of the server after a tenth of the time, and at the end; 0 where /proc is missing."""
    lost: int = 0


def client(address: str, rows: list[int], labels: int, until: float, seed: int, load: Load) -> None:
    """Look and answer until the time is over."""
    parts, draw = urlsplit(address), random.Random(seed)
    base, origin = parts.path.rstrip("/"), f"http://{parts.netloc}"
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)

    def ask(path: str, body: object = None) -> dict[str, object]:
        start = time.monotonic()
        headers = {} if body is None else {"origin": origin, "content-type": "application/json"}
        data = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", f"{base}/{path}", data, headers)
        reply = connection.getresponse()
        content = reply.read()
        load.times.append(time.monotonic() - start)
        if reply.status not in (200, 404):
            raise OSError(f"{path}: {reply.status} {content[:100]!r}")
        return json.loads(content) if reply.getheader("content-type", "").startswith("application/json") else {}

    turn = 0
    while time.monotonic() < until:
        turn += 1
        row, label = draw.choice(rows), draw.randrange(labels)
        try:
            ask(draw.choice(("api/overview", f"api/labels/{label}", f"thumbnails/{row}", f"api/rows/{row}")))
            ask("api/changes?since=0" if turn == 1 else f"api/changes?since={max(load.confirmed, default=0)}")
            item = {"row": row, "label": label, "answer": draw.choice((-1, 0, 1)), "seen": 2**31}
            saved = ask("api/answers", {"items": [item], "who": f"client {seed}", "request": f"{seed}-{turn}"})
            load.confirmed.update(each[0] for each in saved["saved"])  # type: ignore[attr-defined]
        except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
            load.failures.append(f"{type(error).__name__}: {error}")
            connection.close()
    connection.close()


def memory_of(process: int) -> int:
    """Resident memory in KiB."""
    try:
        found = re.search(r"VmRSS:\s*(\d+)", Path(f"/proc/{process}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) if found else 0


def measure(run: Path, clients: int, seconds: float) -> Load:
    """Serve a review of a run to many clients for some seconds."""
    opened, load = open_run(run), Load()
    rows = np.concatenate([opened.train, opened.validation]).tolist()
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder, "review.db")
        command = [sys.executable, "-u", "-m", "spml", "review", str(run), "--decisions", str(database)]
        options = ["--no-browser", "--port", "0"]
        with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                lines = iter(server.stdout.readline, "")
                address = next(line.split()[-1] for line in lines if line.startswith("Open "))
                time.sleep(1)
                start = time.monotonic()
                until = start + seconds
                threads = [
                    threading.Thread(target=client, args=(address, rows, len(opened.classes), until, seed, load))
                    for seed in range(clients)
                ]
                for thread in threads:
                    thread.start()
                time.sleep(seconds / 10)
                early = memory_of(server.pid)
                for thread in threads:
                    thread.join()
                load.memory = early, memory_of(server.pid)
            finally:
                server.send_signal(signal.SIGINT)
                try:
                    server.wait(20)
                except subprocess.TimeoutExpired:
                    server.kill()
        with open_decisions(opened, database) as answers:
            load.lost = len(load.confirmed - {decision.id for decision in answers.since()})
    return load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=300.0)
    options = parser.parse_args()
    load = measure(options.run, options.clients, options.seconds)
    times = np.array(load.times)
    median, slow = np.quantile(times, [0.5, 0.99]) if len(times) else (np.nan, np.nan)
    print(f"{options.clients} clients for {options.seconds:.0f} s: {len(times):,} requests")
    print(f"{len(times) / options.seconds:.0f} per second; reply in {median:.3f} s (median), {slow:.3f} s (99%)")
    print(f"{len(load.confirmed):,} answers confirmed, {load.lost} lost, {len(load.failures)} failed requests")
    for failure in sorted(set(load.failures))[:5]:
        print(f"  {failure}")
    early, late = (round(each / 1024) for each in load.memory)
    print(f"server memory: {early} MiB after a tenth of the time, {late} MiB at the end")


if __name__ == "__main__":
    main()
