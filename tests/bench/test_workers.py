"""Processes that run several things at one time, and what becomes of them when something is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spml.bench.workers import in_workers, interrupted
from spml.errors import InputError

LIMIT = 120  # seconds


def wait_for(found):
    until = time.monotonic() + LIMIT
    while not found() and time.monotonic() < until:
        time.sleep(0.05)
    assert found()


def square(number):
    return number * number


def refuse(number):
    raise InputError(f"{number} is odd") if number % 2 else ValueError


def end_abruptly_beside(folder, dies):
    if not dies:
        run_until_interrupted(folder)
        return
    wait_for(lambda: any(Path(folder).iterdir()))
    os.kill(os.getpid(), signal.SIGKILL)


def run_until_interrupted(folder):
    started = Path(folder, str(os.getpid()))
    started.touch()
    assert interrupted.wait(2 * LIMIT)  # the other may start late
    started.write_text("checkpoint")


def test_results_have_the_number_of_their_task():
    found = dict(in_workers(square, [(n,) for n in range(5)], [""] * 5, device="cpu", workers=2))
    assert found == {n: n * n for n in range(5)}


def test_errors_name_the_task():
    with pytest.raises(InputError, match=r"^the second: 3 is odd$"):
        list(in_workers(refuse, [(3,)], ["the second"], device="cpu", workers=1))


@pytest.mark.parametrize("dying", [0, 1])
def test_killed_worker_is_reported_and_others_end(tmp_path, dying):
    tasks = [(str(tmp_path), number == dying) for number in range(2)]
    with pytest.raises(InputError, match=r"One of 2 workers was killed.*fewer --workers"):
        list(in_workers(end_abruptly_beside, tasks, ["an", "em"], device="cpu", workers=5))
    (other,) = tmp_path.iterdir()
    assert other.read_text() == "checkpoint"


def test_other_errors_have_the_traceback_of_the_worker():
    with pytest.raises(ValueError) as error:  # noqa: PT011
        list(in_workers(refuse, [(2,)], [""], device="cpu", workers=2))
    assert "in refuse" in error.value.__notes__[0]


def alive(process):
    """Whether it runs: one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes by /proc")
@pytest.mark.parametrize("abrupt", [False, True])
def test_workers_of_a_killed_process_end(tmp_path, abrupt):
    script = f"""
from test_workers import in_workers, run_until_interrupted
if __name__ == "__main__":
    tasks = [({str(tmp_path)!r},)] * 2
    list(in_workers(run_until_interrupted, tasks, ["", ""], device="cpu", workers=2, abrupt={abrupt}))
"""
    path = tmp_path / "script.py"
    path.write_text(script)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    caller = subprocess.Popen([sys.executable, str(path)], env=environment)
    try:
        wait_for(lambda: len([file for file in tmp_path.iterdir() if file.name.isdigit()]) == 2)
    finally:
        caller.kill()
        caller.wait()
    workers = [file for file in tmp_path.iterdir() if file.name.isdigit()]
    wait_for(lambda: not any(alive(file.name) for file in workers))
    assert {file.read_text() for file in workers} == {"" if abrupt else "checkpoint"}
