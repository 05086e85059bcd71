"""A folder per class: each subfolder is a class, and its images or texts are positive for it."""

from __future__ import annotations

import hashlib
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import NamedTuple, Unpack

from spml.data.dataset import Dataset
from spml.data.formats.user_data import SPLITS, UserOptions, from_images, from_known
from spml.data.stores.decode import SUFFIXES, FilePath
from spml.data.stores.texts import TextStore, read_text
from spml.errors import InputError
from spml.labels import Labels

_ENDING = 4096


TEXT_SUFFIXES = (".txt",)


class _File(NamedTuple):
    name: str
    """The path relative to the data, with slashes. No Path objects, because there may be millions of images."""
    split: str
    label: str


def from_folder(path: FilePath, **options: Unpack[UserOptions]) -> Dataset:
    """Open a folder of images with a subfolder per class.

    Identical files in two class folders become one row with two positives. No image is decoded here.

    Parameters
    ----------
    path : path
        A folder with `<class>/…/<image>`, or with `train/<class>/…` and optionally `val` and `test`.
    **options
        See `UserOptions`.

    Returns
    -------
    Dataset
    """
    files, labels, notes, splits = _read(Path(path), "image", SUFFIXES)
    return from_images(Path(path).resolve().name, files, labels, notes, splits, **options)


def from_text_folder(path: FilePath, *, validation_share: float | None = None, seed: int = 1200) -> Dataset:
    """Open a folder of text files with a subfolder per class.

    Identical files in two class folders become one row with two positives.

    Parameters
    ----------
    path : path
        A folder with `<class>/…/<text>.txt`, or with `train/<class>/…` and optionally `val` and `test`. The texts must
        be UTF-8.
    validation_share, seed
        Share, by default 0, and seed of the rows that become validation if the folder has no split.

    Returns
    -------
    Dataset
    """
    files, labels, notes, splits = _read(Path(path), "text", TEXT_SUFFIXES)
    store = TextStore((read_text(Path(file)) for file in files), str(path))
    name, notes = Path(path).resolve().name, [*notes, *store.notes()]
    return from_known(name, store, labels, notes, splits, validation_share=validation_share, seed=seed)


def _read(root: Path, noun: str, suffixes: tuple[str, ...]) -> tuple[list[str], Labels, list[str], list[str]]:
    """Return the files below a folder per class with their labels, notes and the split of each."""
    if not root.is_dir():
        raise InputError(f"{root}: no such folder.")
    found, left_out = files_below(root, suffixes, _class_of)
    if not found:
        raise InputError(f"{root}: no {noun} ({', '.join(suffixes)}) in this folder or below.")
    members, classes, notes = _by_class(root, found, noun)
    known = [[member.label] for member in members]
    copies: set[int] = set()
    merged = _same_in_several_classes(root, members)
    for first, *others in merged:
        known[first] = sorted({members[row].label for row in (first, *others)})
        copies.update(others)
    rows = [row for row in range(len(members)) if row not in copies]
    names = [members[row].name for row in rows]
    _check_unicode(root, classes)
    labels = Labels.from_lists([known[row] for row in rows], classes, ids=names)
    if merged:
        example = members[min(merged)[0]].name.rpartition("/")[2]
        notes.append(
            f"{len(merged)} {noun}s are in more than one class folder: each is one row with all its classes "
            f"(for example {example!r})."
        )
    if left_out:
        notes.append(f"{len(left_out)} hidden or other files were ignored (for example {left_out[0]!r}).")
    return [os.path.join(root, name) for name in names], labels, notes, [members[row].split for row in rows]


def files_below(
    root: Path, suffixes: tuple[str, ...], group: Callable[[str], str] = lambda name: ""
) -> tuple[list[str], list[str]]:
    """The names of all files with these suffixes below a folder, sorted, and of everything else that is no folder.

    Links to folders are followed. A folder that several links lead to counts once, or once per `group` of a name, so
    that folders linked crosswise end. Pipes and devices are no files; hidden files and folders are left out.
    """
    members: list[str] = []
    others: list[str] = []
    entered: defaultdict[str, set[str]] = defaultdict(set)  # real paths by class
    waiting = [("", os.path.realpath(root))]
    while waiting:
        inside, real_parent = waiting.pop()
        try:
            entries = sorted(os.scandir(os.path.join(root, inside.rstrip("/"))), key=_links_last)
        except OSError as error:
            raise InputError(f"{error.filename}: the folder cannot be read ({error.strerror}).") from error
        for entry in entries:
            name = inside + entry.name
            if os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir():  # a link may lead to itself
                is_link, entered_in_group = entry.is_symlink(), entered[group(name)]
                real_path = os.path.realpath(entry.path) if is_link else os.path.join(real_parent, entry.name)
                if not hidden(entry.name) and real_path not in entered_in_group and not _leads_back(entry, real_path):
                    entered_in_group.add(real_path)
                    waiting.append((f"{name}/", real_path))
                continue
            matches = os.path.splitext(entry.name)[1].lower() in suffixes and not hidden(entry.name)
            broken = entry.is_symlink() and not os.path.exists(entry.path)  # which reading reports or skips
            is_file = broken or entry.is_file()
            (members if matches and is_file else others).append(name)
    return sorted(members, key=_in_folders_first), others


def _links_last(entry: os.DirEntry[str]) -> tuple[bool, str]:
    return entry.is_symlink(), entry.name


def _in_folders_first(name: str) -> tuple[list[str], str]:
    *folders, file = name.split("/")
    return folders, file


def _class_of(name: str) -> str:
    """Return the folder of a class, with that of its split."""
    top, _, rest = name.partition("/")
    return f"{top}/{rest.partition('/')[0]}" if top.casefold() in SPLITS else top


def _leads_back(entry: os.DirEntry[str], real_path: str) -> bool:
    """Return whether this is a link to one of its parent folders."""
    parents = Path(entry.path).parents
    return entry.is_symlink() and any(real_path == os.path.realpath(above) for above in parents)


def hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _by_class(root: Path, names: list[str], noun: str) -> tuple[list[_File], list[str], list[str]]:
    """Return the files with split and class, the sorted classes, and notes."""
    tops = {name.partition("/")[0] for name in names if "/" in name}
    has_splits = "train" in {SPLITS.get(top.casefold()) for top in tops} and all(
        top.casefold() in SPLITS for top in tops
    )
    if not has_splits:
        _check_no_split(root, names)
    depth = 1 if has_splits else 0  # of the class in the path
    members: list[_File] = []
    loose: list[str] = []
    for name in names:
        *folders, _ = name.split("/", depth + 1)
        if len(folders) == depth + 1:
            split = SPLITS[folders[0].casefold()] if has_splits else "train"
            members.append(_File(name, split, sys.intern(folders[depth])))
        else:
            loose.append(name)
    if not members:
        location = "the folders train, val and test contain" if has_splits else "it contains"
        raise InputError(
            f"{root}: {location} {len(names)} {noun}s but no folder per class: put the {noun}s of each class in a "
            f"folder with its name, or give a table (csv, parquet) of {noun}{' paths' * (noun == 'image')} and labels."
        )
    classes = {member.label for member in members}
    notes = []
    if loose:
        notes.append(f"{len(loose)} {noun}s are in no class folder and were ignored (for example {loose[0]!r}).")
    if has_splits:
        notes.append(f"the folders {', '.join(sorted(tops))} are the split, their subfolders the classes.")
    empty = sorted(
        entry.name
        for top in ([root / name for name in tops] if has_splits else [root])
        for entry in top.iterdir()
        if entry.is_dir() and not hidden(entry.name) and entry.name not in classes
    )
    if len(empty) == 1:
        notes.append(f"the folder {empty[0]!r} contains no {noun} and is not a class.")
    elif empty:
        notes.append(f"the folders {', '.join(map(repr, empty))} contain no {noun} and are not classes.")
    return members, sorted(classes), notes


def _check_no_split(root: Path, names: list[str]) -> None:
    """Raise `InputError` if several folders look like a split with classes, but others are next to them."""
    tops = {name.partition("/")[0] for name in names if "/" in name}
    nested = {name.partition("/")[0] for name in names if name.count("/") > 1}
    parts = sorted(top for top in nested if top.casefold() in SPLITS)
    if len({SPLITS[top.casefold()] for top in parts}) < 2 and not (parts and tops == {*parts}):
        return
    other = min(tops - {*parts}, default=None)
    problem = "there is no folder train" if other is None else f"the folder {other!r} is next to them"
    raise InputError(
        f"{root}: the folders {', '.join(parts)} look like a split, but {problem}: keep only train, val and test, or "
        "rename them if they are classes."
    )


def _check_unicode(root: Path, classes: list[str]) -> None:
    for name in classes:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InputError(f"{root}: the name of the folder {name!r} is not valid UTF-8; rename it.") from None


def _same_in_several_classes(root: Path, members: list[_File]) -> list[list[int]]:
    """Groups of rows with identical files in several classes of one split.

    Only files that have the same size and last bytes as a file of another class are read completely.
    """

    def length(member: _File) -> tuple[str, int | str]:
        try:
            return member.split, os.stat(os.path.join(root, member.name)).st_size
        except FileNotFoundError:  # a broken link, which reading the files reports or skips
            return member.split, member.name

    def ending(member: _File) -> bytes:
        with open(os.path.join(root, member.name), "rb", buffering=0) as file:
            file.seek(-min(_ENDING, file.seek(0, os.SEEK_END)), os.SEEK_END)
            return hashlib.sha256(file.read(_ENDING)).digest()

    def content(member: _File) -> bytes:
        with open(os.path.join(root, member.name), "rb") as file:
            return hashlib.file_digest(file, "sha256").digest()

    groups: list[Iterable[int]] = [range(len(members))]
    try:
        for trait in (length, ending, content):
            groups = [part for rows in groups for part in _apart(rows, members, trait)]
    except OSError as error:
        raise InputError(f"{error.filename}: the file cannot be read ({error.strerror}).") from error
    return [list(rows) for rows in groups]


def _apart(rows: Iterable[int], members: list[_File], trait: Callable[[_File], Hashable]) -> list[list[int]]:
    """Group rows by a trait, and drop groups of a single class."""
    parts: defaultdict[Hashable, list[int]] = defaultdict(list)
    for row in rows:
        parts[trait(members[row])].append(row)
    return [part for part in parts.values() if len({members[row].label for row in part}) > 1]
