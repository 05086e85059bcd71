"""The one atomic writer and the one folder lock of the library. `spml.runs.files` adds what runs need."""

import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

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
        If `path` is something other than a regular file, the temporary folder cannot be created, a write fails, or
        `path` cannot be replaced.

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
    check_target(target)
    folder = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    with ExitStack() as stack:
        with explain_write_errors(target):
            _delete_leftovers(target.parent)
            folder.mkdir(0o700)
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stack.enter_context(lock_folder(folder, wait=True))  # tells other processes that the writer is alive
        temporary = folder / target.name
        try:
            yield temporary
        except OSError as error:
            if error.filename is not None and folder not in Path(os.fsdecode(error.filename)).parents:
                raise  # about another file
            with explain_write_errors(target):
                raise
        with explain_write_errors(target):
            check_target(target)
            if temporary.is_file():
                with temporary.open("rb+") as file:
                    os.fsync(file.fileno())
                temporary.chmod(stat.S_IMODE(target.stat().st_mode) if target.is_file() else _DEFAULT_MODE)
            os.replace(temporary, target)


def check_target(path: Path) -> None:
    """Raise `InputError` unless a path is a regular file or does not exist: only these are ever replaced."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise InputError(f"{str(path)!a} is not Unicode text, which some files need as a name: use another") from None
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:
        raise InputError(f"{str(path)!r} cannot be written: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(mode):
        kind = next((word for test, word in _KINDS if test(mode)), "not a regular file")
        raise InputError(f"{path} is {kind}: give the path of a regular file, or of one that does not exist yet")


_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def _delete_leftovers(parent: Path) -> None:
    """Delete what killed processes left in a folder; once per process, since listing a large folder is slow."""
    resolved = parent.resolve()
    if resolved in _tidied:
        return
    _tidied.add(resolved)
    for leftover in [Path(entry) for entry in os.scandir(resolved) if _TEMPORARY.fullmatch(entry.name)]:
        if leftover.is_symlink() or not leftover.is_dir():
            continue
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
        if error.errno is None and "Detail: [errno" not in reason:
            raise  # not from the operating system, and therefore not about writing
        if "Detail: [errno" in reason:  # pyarrow's message, which names the temporary file
            reason = reason.rpartition("] ")[2].rstrip(".")
        if error.errno in (None, errno.ENOENT) and not path.parent.is_dir():
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
        with _open_lock(path) as file:
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
                        if os.fstat(file.fileno()).st_size == 0:  # otherwise it is a file of the user
                            os.unlink(path)


def _open_lock(path: Path) -> IO[bytes]:
    """Open a lock's file without following links, waiting for pipes or changing what it contains."""
    with explain_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666), "rb+", 0)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                check_target(path)
            raise
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        check_target(path)
    return file
