"""The atomic writer and the folder lock."""

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from spml.atomic import atomic_path, lock_folder
from spml.errors import InputError
from spml.runs.files import write_tensors, write_text

KILLED = """
import os, signal, sys
from spml.atomic import atomic_path
with atomic_path(sys.argv[1]) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
WRITES = """
import sys
from pathlib import Path
from spml.runs.files import write_tensors, write_text
write_text(Path(sys.argv[1]), "whole")
"""


def run(code: str, path: Path) -> int:
    return subprocess.run([sys.executable, "-c", code, str(path)], timeout=60).returncode


def test_killed_writer_leaves_old_file_and_next_process_tidies_up(tmp_path):
    pytest.importorskip("fcntl")
    path = tmp_path / "a.txt"
    path.write_text("old")
    assert run(KILLED, path) != 0
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2
    assert run(WRITES, tmp_path / "b.txt") == 0  # another file of the folder
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.txt", "b.txt"]


def test_temporary_files_of_running_writers_are_kept(tmp_path):
    with atomic_path(tmp_path / "a.txt") as temporary:
        temporary.write_text("first")
        assert run(WRITES, tmp_path / "a.txt") == 0
        assert temporary.read_text() == "first"
        assert (tmp_path / "a.txt").read_text() == "whole"
    assert (tmp_path / "a.txt").read_text() == "first"
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


def test_folders_that_look_similar_are_kept(tmp_path):
    (tmp_path / ".mine.part").mkdir()
    assert run(WRITES, tmp_path / "a.txt") == 0
    assert (tmp_path / ".mine.part").is_dir()


def test_temporary_names_are_unpredictable_and_private(tmp_path):
    with atomic_path(tmp_path / "a") as first, atomic_path(tmp_path / "a") as second:
        assert first != second
        assert stat.S_IMODE(first.parent.stat().st_mode) == 0o700
        first.write_text("1")
        second.write_text("2")


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_permissions_are_kept(tmp_path, mode):
    path = tmp_path / "a.txt"
    path.write_text("old")
    path.chmod(mode)
    write_text(path, "new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_new_files_have_the_usual_permissions(tmp_path):
    write_text(tmp_path / "a.txt", "new")
    (tmp_path / "b.txt").touch()
    assert (tmp_path / "a.txt").stat().st_mode == (tmp_path / "b.txt").stat().st_mode


def test_folders_are_written_atomically(tmp_path):
    with atomic_path(tmp_path / "out") as temporary:
        temporary.mkdir()
        (temporary / "part-0").write_text("rows")
        assert not (tmp_path / "out").exists()
    assert (tmp_path / "out" / "part-0").read_text() == "rows"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_missing_folder_is_reported(tmp_path):
    with pytest.raises(InputError, match=r"a\.txt cannot be written: the folder"):
        write_text(tmp_path / "no" / "a.txt", "new")


def test_lock_waits_if_asked(tmp_path):
    pytest.importorskip("fcntl")
    order = []

    def second() -> None:
        with lock_folder(tmp_path, wait=True):
            order.append("second")

    with lock_folder(tmp_path) as locked:
        assert locked
        thread = threading.Thread(target=second)
        thread.start()
        with pytest.raises(InputError, match="another command is working"), lock_folder(tmp_path):
            pass
        with lock_folder(tmp_path, name=".other"):  # an independent lock
            order.append("first")
    thread.join(30)
    assert order == ["first", "second"]
    assert list(tmp_path.iterdir()) == []


def test_lock_where_the_file_system_has_none(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def unsupported(*_: object) -> None:
        raise OSError(os.strerror(95))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with lock_folder(tmp_path) as locked:
        assert not locked


def make(kind: str, path: Path) -> None:
    """Something at `path` that is not a regular file."""
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    else:
        (path.parent / "elsewhere.txt").write_text("of the user")
        path.symlink_to(path.parent / "elsewhere.txt")


KINDS = ["a pipe", "a folder", "a symbolic link"]


@pytest.mark.parametrize("kind", KINDS)
def test_only_regular_files_are_replaced(tmp_path, kind):
    make(kind, tmp_path / "out.txt")
    before = os.lstat(tmp_path / "out.txt")
    with pytest.raises(InputError, match=f"out.txt is {kind}"):
        write_text(tmp_path / "out.txt", "new")
    assert os.path.samestat(before, os.lstat(tmp_path / "out.txt"))
    assert kind != "a symbolic link" or (tmp_path / "elsewhere.txt").read_text() == "of the user"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.timeout(20)
def test_locks_follow_no_links_and_wait_for_no_pipes(tmp_path, kind):
    make(kind, tmp_path / ".lock")
    with pytest.raises(InputError, match=f"lock is {kind}"), lock_folder(tmp_path):
        pass
    assert kind != "a symbolic link" or (tmp_path / "elsewhere.txt").read_text() == "of the user"


def test_a_users_file_with_the_name_of_a_lock_is_kept(tmp_path):
    (tmp_path / ".lock").write_text("of the user")
    with lock_folder(tmp_path):
        pass
    assert (tmp_path / ".lock").read_text() == "of the user"


def test_a_full_disk_is_reported_with_the_name_of_the_file(tmp_path):
    with pytest.raises(InputError, match=r"a\.bin cannot be written: no space left on device"):  # noqa: SIM117
        with atomic_path(tmp_path / "a.bin"):
            raise OSError(errno.ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_errors_about_other_files_keep_their_name(tmp_path):
    with pytest.raises(FileNotFoundError, match="other"), atomic_path(tmp_path / "a.bin"):
        Path(tmp_path, "other").read_bytes()


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of the operating system")
def test_a_full_disk_is_one_sentence_for_tensors_too(tmp_path):
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(InputError, match=r"x\.safetensors cannot be written: file too large"):
            write_tensors(tmp_path / "x.safetensors", {"a": torch.zeros(100_000)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
