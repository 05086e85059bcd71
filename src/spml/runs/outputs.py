"""Files that commands write for the user. Only files that a command wrote itself are replaced."""

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from spml.atomic import check_target
from spml.errors import InputError
from spml.runs.decisions import DECISIONS
from spml.runs.files import write_text
from spml.runs.folder import BOUND_FILES, check_output_path
from spml.runs.written import OUTPUTS, check_replaceable, digest, read_outputs

RUN_FILES = ("run.json", *BOUND_FILES, "last.safetensors", "stages.json")
_ANSWERS = tuple(DECISIONS + ending for ending in ("", "-wal", "-shm", "-journal"))
_PROTECTED = (*RUN_FILES, OUTPUTS, *_ANSWERS, "log.jsonl", ".lock")


@contextmanager
def writing_output(
    out: Path, *folders: Path, force: bool = False, inputs: Sequence[Path | None] = ()
) -> Iterator[None]:
    """Check that `out` may be written, and record afterwards that it was written.

    An existing file is replaced only with `force`, or if it is unchanged since a command wrote it for the same run:
    the first of `folders` records a digest of every file written. The data, the run's own files and the files among
    `inputs` are never replaced.
    """
    check_not_of_a_run(out)
    for folder in folders:
        check_output_path(out, folder)
    if any(given is not None and given.resolve() == out.resolve() for given in inputs):
        raise InputError(f"--out {out} is also an input: use another path")
    check_replaceable(out, folders[0], force=force)
    yield
    if out.is_file():
        with suppress(InputError):  # a run folder that cannot be written: the next command asks for --force
            written = {**read_outputs(folders[0]), str(out.resolve()): digest(out)}
            write_text(folders[0] / OUTPUTS, json.dumps(written, indent=1))


def check_not_of_a_run(out: Path) -> None:
    """Raise `InputError` if a path is a file of a run itself, or is no regular file."""
    check_target(out)
    target = out.resolve()
    if (target.parent / "run.json").exists() and target.name.lower() in _PROTECTED:
        raise InputError(f"--out {out} is a file of the run itself: use another name")


def check_overwrite(path: Path, overwrite: bool) -> None:
    """Raise `InputError` if a file exists and must not be replaced."""
    check_not_of_a_run(path)
    if path.exists() and not overwrite:
        raise InputError(f"{path} already exists: pass overwrite=True to replace it, or use another path")


def check_results_folder(out: Path, marker: str, names: Collection[str]) -> None:
    """Raise `InputError` if a folder that has no `marker` yet holds files that our results would replace.

    In any folder, results replace only regular files.
    """
    for name in names:
        check_target(out / name)
    if not (out / marker).exists() and (found := [name for name in names if (out / name).exists()]):
        raise InputError(f"--out {out} already contains {found[0]}, which would be replaced: use another folder")
