"""The one atomic writer and the one folder lock of the library. `spml.runs.files` adds what runs need."""

import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from spml.errors import InputError

_UMASK = os.umask(0)  # it can only be read by setting it, which is unsafe once threads write files
os.umask(_UMASK)
_DEFAULT_MODE = 0o666 & ~_UMASK
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.part")
_tidied: set[Path] = set()  # folders this process has searched for leftovers


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` on success and is deleted on failure.

    Readers see the old content or the new content, never a part of it. The temporary path has the same file name in
    a hidden folder with an unpredictable name. A killed process leaves that folder behind; the next process that
    writes to the same place deletes it. A file keeps the permissions of the file it replaces.

    Parameters
    ----------
    path : path-like
        The file to write. A folder works too, if `path` does not exist yet.

    Yields
    ------
    Path
        Where to write.

    Raises
    ------
    InputError
        If the temporary folder cannot be created or `path` cannot be replaced. Wrap your own writes in
        `explain_write_errors` to report them in the same way.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with atomic_path(Path(folder, "a.txt")) as temporary:
    ...         _ = temporary.write_text("whole")
    ...     Path(folder, "a.txt").read_text()
    'whole'
    """
    target = Path(path)
    folder = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    with ExitStack() as stack:
        with explain_write_errors(target):
            _delete_leftovers(target.parent)
            folder.mkdir(0o700)
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stack.enter_context(lock_folder(folder, wait=True))  # tells other processes that the writer is alive
        temporary = folder / target.name
        yield temporary
        with explain_write_errors(target):
            if temporary.is_file():
                with temporary.open("rb+") as file:
                    os.fsync(file.fileno())
                temporary.chmod(stat.S_IMODE(target.stat().st_mode) if target.is_file() else _DEFAULT_MODE)
            os.replace(temporary, target)


def _delete_leftovers(parent: Path) -> None:
    """Delete what killed processes left in a folder; once per process, since listing a large folder is slow."""
    resolved = parent.resolve()
    if resolved in _tidied:
        return
    _tidied.add(resolved)
    for leftover in [entry for entry in resolved.iterdir() if _TEMPORARY.fullmatch(entry.name)]:
        with suppress(InputError, OSError), lock_folder(leftover) as locked:
            if locked:
                shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Turn an I/O error into an `InputError` that names `path`. Keep code that does not write outside it."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if "Detail: [errno" in reason:  # pyarrow's message, which names the temporary file
            reason = reason.rpartition("] ")[2].rstrip(".")
        if not path.parent.is_dir():
            reason = f"the folder {path.parent} does not exist"
        raise InputError(f"{path} cannot be written: {reason[:1].lower()}{reason[1:]}.") from error


@contextmanager
def lock_folder(folder: Path, *, wait: bool = False, name: str = ".lock") -> Iterator[bool]:
    """Lock a folder for this process. The lock ends with the process, even if it is killed.

    Parameters
    ----------
    folder : Path
        Created if it does not exist.
    wait : bool
        Whether to wait for another process that holds the lock.
    name : str
        The lock's file in the folder. Locks of different names are independent.

    Yields
    ------
    bool
        Whether the folder is locked: False on systems and file systems without locks.

    Raises
    ------
    InputError
        If another process holds the lock and `wait` is False.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield False
        return
    path, ours = folder / name, False
    while not ours:
        folder.mkdir(parents=True, exist_ok=True)
        with open(path, "w") as file:
            locked = True
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise InputError(
                    f"another command is working in {folder}: wait until it ends, or use another folder"
                ) from None
            except OSError:  # a file system without locks
                locked = False
            with suppress(FileNotFoundError):  # the previous owner deleted the file after it was opened here
                ours = os.path.samestat(os.fstat(file.fileno()), os.stat(path))
            if ours:
                try:
                    yield locked
                finally:
                    with suppress(OSError):
                        os.unlink(path)
