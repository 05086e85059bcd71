"""However a command ends, the user sees one sentence and the exit code says what happened."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from spml.boundary import CRASHED, INPUT_ERROR, INTERRUPTED, run_guarded
from spml.errors import InputError


def ends(error: BaseException) -> Any:
    def command() -> None:
        raise error

    return command


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SPML_DEBUG", raising=False)
    return tmp_path / "cache"


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (InputError("x.csv: row 3 has no label"), INPUT_ERROR, "spml: x.csv: row 3 has no label"),
        (SystemExit("a message"), INPUT_ERROR, "spml: a message"),
        (SystemExit(3), 3, ""),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "x"), INPUT_ERROR, "x: No such file"),
        (MemoryError(), INPUT_ERROR, "memory ran out"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), INPUT_ERROR, "memory ran out"),
        (KeyboardInterrupt(), INTERRUPTED, "Interrupted. Run the same command to resume."),
        (KeyError("surprise"), CRASHED, "spml: unexpected error (KeyError: 'surprise')"),
        (RecursionError("too deep"), CRASHED, "unexpected error (RecursionError"),
        (AssertionError(), CRASHED, "unexpected error (AssertionError)"),
    ],
)
def test_every_ending_is_one_line(error: BaseException, code: int, sentence: str, capsys: Any) -> None:
    assert run_guarded(ends(error)) == code
    text = capsys.readouterr().err
    assert sentence in text
    assert text.count("\n") <= 1
    assert "Traceback" not in text


def test_a_crash_is_logged_and_shown_on_request(cache: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_guarded(ends(ZeroDivisionError("division"))) == CRASHED
    (log,) = (cache / "spml").iterdir()
    assert "Traceback" in log.read_text()
    assert str(log) in capsys.readouterr().err
    monkeypatch.setenv("SPML_DEBUG", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)  # where no log can be written
    assert run_guarded(ends(ZeroDivisionError("division"))) == CRASHED
    assert "Traceback" in capsys.readouterr().err


def test_a_lost_peer_is_one_sentence(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run_guarded(ends(RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer"))) == 1
    assert capsys.readouterr().err == (
        "spml: another process of this training ended. Run the same command to resume.\n"
    )


def test_signal_handlers_are_restored() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    run_guarded(lambda: None)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_becomes_another_error_is_still_an_interruption(number: signal.Signals, capsys: Any) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)

    def command() -> None:
        try:
            os.kill(os.getpid(), number)
            time.sleep(5)
        except KeyboardInterrupt:
            raise ImportError("partially initialised module") from None

    try:
        assert run_guarded(command) == INTERRUPTED
    finally:
        signal.signal(signal.SIGHUP, before)
    assert capsys.readouterr().err == "Interrupted. Run the same command to resume.\n"


def heed_hangups() -> None:
    """SIGHUP as in a terminal: whoever runs the tests may ignore it, and children inherit that."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def wait_for_handler(process: subprocess.Popen[bytes]) -> None:
    """Wait until a process catches SIGHUP, the last of the signals: before that, Python itself is still starting."""
    status = Path(f"/proc/{process.pid}/status")
    for _ in range(3000):
        (caught,) = [line.split()[1] for line in status.read_text().splitlines() if line.startswith("SigCgt")]
        if int(caught, 16) >> (signal.SIGHUP - 1) & 1:
            return
        time.sleep(0.01)
    pytest.fail("the command never caught SIGHUP")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("number", "moment"), [(signal.SIGINT, 0.0), (signal.SIGTERM, 0.4), (signal.SIGHUP, 2.0)], ids=str
)  # in imports; at the start; in training
def test_signals_at_any_moment_end_with_the_same_sentence(
    number: signal.Signals, moment: float, tmp_path: Path
) -> None:
    options = ["--model", "small", "--method", "em", "--epochs", "500", "--device", "cpu"]
    command = [sys.executable, "-m", "spml", "train", "scenes", "--out", tmp_path / "run", *options]
    pipes: dict[str, Any] = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    with subprocess.Popen(list(map(str, command)), **pipes, preexec_fn=heed_hangups) as process:
        try:
            wait_for_handler(process)
            time.sleep(moment)
            process.send_signal(number)
            _, text = process.communicate(timeout=100)
        finally:
            process.kill()
    assert process.returncode == INTERRUPTED, text.decode()
    assert text.decode().splitlines()[-1:] == ["Interrupted. Run the same command to resume."]
    assert "Traceback" not in text.decode()
