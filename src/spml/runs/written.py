"""The files that commands wrote for the user, and may replace. It imports no torch: commands check at once."""

import hashlib
import shlex
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from spml.errors import InputError
from spml.json_text import parse_json
from spml.runs.schema import Digests, check_schema, damaged

OUTPUTS = "outputs.json"
"""In a run folder: the digest of every file that a command wrote from this run."""


def check_replaceable(out: Path, run: Path, *, force: bool = False) -> None:
    """Raise `InputError` if a file exists that was not written from this run, or was changed since."""
    if out.is_file() and not force and read_outputs(run).get(str(out.resolve())) != digest(out):
        raise InputError(f"{out} already exists: use --force to replace it, or another --out")


def check_before_loading(out: Path, run: Path, *, force: bool = False) -> None:
    """`check_replaceable`, for a command that has not loaded anything yet.

    What has a more exact message is left to `writing_output`: folders without a run, files of a run and of its data.
    """
    if (run / "run.json").exists() and not (out.resolve().parent / "run.json").exists() and not _of_data(out, run):
        check_replaceable(out, run, force=force)


def _of_data(out: Path, run: Path) -> bool:
    """Whether a path may belong to the data that a run was trained on."""
    source = _source(run / "predictions.safetensors")
    target = out.resolve()
    places = [Path(text) for text in (source.get("path"), *source.get("options", {}).values()) if isinstance(text, str)]
    return any(target == place or place in target.parents for place in places) or any(
        target.parent == place.parent and target.stem in (place.stem, f"{place.stem}-labels", "labels")
        for place in places
    )


def _source(predictions: Path) -> dict[str, Any]:
    """How the data of a run is opened, from the header of its predictions; empty if that cannot be read."""
    if not predictions.is_file():  # opening a pipe would wait for a writer
        return {}
    try:
        with safe_open(predictions, "numpy") as file:
            source = parse_json(file.metadata()["record"])["source"]
    except (OSError, SafetensorError, ValueError, TypeError, KeyError):
        return {}
    return source if isinstance(source, dict) and isinstance(source.get("options"), dict) else {}


def read_outputs(run: Path) -> Digests:
    """Return the digests of the files that were written from a run."""
    path = run / OUTPUTS
    if not path.is_file():
        return {}
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise damaged(path, error) from None
    return check_schema(path, content, Digests)


def digest(path: Path) -> str:
    """Return the SHA-256 digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def suggested_file(run: Path, ending: str) -> str:
    """A file name for a command that is printed: named after the run, so that files of several runs do not collide.

    Examples
    --------
    >>> suggested_file(Path("runs/photos"), "recovered.csv")
    'photos-recovered.csv'
    >>> suggested_file(Path("runs/my photos"), "recovered.csv")
    "'my photos-recovered.csv'"
    """
    return shlex.quote(f"{run.resolve().name or 'run'}-{ending}")


def shell_path(path: Path) -> str:
    """A path as a word of the shell, for a command that is printed.

    Examples
    --------
    >>> shell_path(Path("runs/my photos"))
    "'runs/my photos'"
    """
    return shlex.quote(str(path))
