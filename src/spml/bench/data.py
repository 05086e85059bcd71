"""The data sets of a benchmark: any data with full labels, by name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from spml.data.dataset import Dataset
from spml.data.detect import open_data
from spml.data.formats.scenes import QUICKSTART
from spml.errors import InputError

SCENES = "scenes"  # the built-in data, in place of a path; a folder of that name is ./scenes


@dataclass(frozen=True)
class DataSource:
    """A data set by its name in a protocol, and where it is.

    Parameters
    ----------
    name : str
    path : Path
        Anything that `open_data` opens and that has full labels, or the feature file of a pack.
    kind : str, optional
        The format, if it cannot be detected.
    """

    name: str
    path: Path
    kind: str | None = None

    @classmethod
    def parse(cls, text: str, kind: str | None = None) -> DataSource:
        """Parse `voc12=PATH`."""
        name, equals, path = text.partition("=")
        if not equals or not name or not path:
            raise InputError(f"--data {text} is not of the form name=path, as in --data voc12=packs/voc12")
        if path == SCENES:
            return cls(name, Path(path))
        if not Path(path).exists():
            raise InputError(f"--data {text}: no file or folder {path}")
        return cls(name, Path(path).resolve(), kind)

    @cached_property
    def feature_file(self) -> Path | None:
        """The features that come with a pack; None: they are computed from the images."""
        if self.path.suffix == ".npy":
            return self.path
        return next(iter(sorted(self.path.glob("features*.npy"))), None)

    def open(self, *, features: bool, image_size: int, cache_path: Path | None = None) -> Dataset:
        """Open the data, and check that a benchmark can run on it.

        Parameters
        ----------
        features : bool
            Take the features that come with the data, if there are any; otherwise the images.
        image_size : int
        cache_path : Path, optional
            Folder for decoded images.

        Returns
        -------
        Dataset

        Raises
        ------
        InputError
            If there is no test set, or labels of its validation or test rows are unknown.
        """
        file = self.feature_file
        if features and file is not None:
            return _open(file.parent, self.kind, features=file.name if file == self.path else True)
        if self.path == Path(SCENES):
            return _open(SCENES, None, **QUICKSTART, size=image_size)
        folder = self.path.parent if self.path.suffix == ".npy" else self.path
        return _open(folder, self.kind, size=image_size, cache_path=cache_path)


@lru_cache(maxsize=4)
def _open(path: str | Path, kind: str | None, **options: Any) -> Dataset:
    dataset = open_data(path, **({} if kind is None else {"kind": kind}), **options)
    evaluated = np.concatenate([dataset.validation, dataset.test])
    if not len(dataset.test) or not len(dataset.validation):
        raise InputError(f"{path}: a benchmark needs validation and test rows; `spml pack` makes such data")
    if not dataset.fully_labelled[evaluated].all():
        raise InputError(f"{path}: a benchmark needs the full labels of all validation and test rows")
    return dataset
