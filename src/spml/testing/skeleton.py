"""A package skeleton for a new method."""

import re
from importlib import resources
from pathlib import Path
from string import Template

from spml.atomic import atomic_path
from spml.errors import InputError
from spml.methods import METHODS

_FILES = {  # template: path in the package
    "pyproject.toml.txt": "pyproject.toml",
    "README.md.txt": "README.md",
    "init.py.txt": "src/$package/__init__.py",
    "test_method.py.txt": "tests/test_method.py",
    "compare.toml.txt": "compare.toml",
}


def write_method_package(name: str, folder: str | Path) -> list[Path]:
    """Write a package with a new method: a loss, its tests, and a protocol that compares it with other methods.

    The package registers the method by an entry point in the group `spml.methods`.

    Parameters
    ----------
    name : str
        Name of the method: lower-case letters, digits and hyphens. The package is called `spml_<name>`.
    folder : str or Path
        Folder to create.

    Returns
    -------
    list of Path
        The files written.

    Raises
    ------
    InputError
        If the name is not valid or taken, or the folder exists.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as temporary:
    ...     [path.name for path in write_method_package("my-loss", f"{temporary}/my-loss")]
    ['pyproject.toml', 'README.md', '__init__.py', 'test_method.py', 'compare.toml']
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise InputError(f"{name!r} is not a method name: use lower-case letters, digits and hyphens, as in my-loss")
    if name in METHODS:
        raise InputError(f"A method named {name!r} already exists. Choose another name.")
    folder = Path(folder)
    if folder.exists():
        raise InputError(f"{folder} already exists. Choose another folder.")
    identifier = name.replace("-", "_")
    words = {
        "name": name,
        "distribution": f"spml-{name}",
        "package": f"spml_{identifier}",
        "function": f"{identifier.removesuffix('_loss')}_loss",
    }
    names = [Template(target).substitute(words) for target in _FILES.values()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(folder) as temporary:
        for template, target in zip(_FILES, names, strict=True):
            path = temporary / target
            path.parent.mkdir(parents=True, exist_ok=True)
            text = resources.files("spml.testing").joinpath("files", template).read_text("utf-8")
            path.write_text(Template(text).substitute(words), "utf-8")
    return [folder / target for target in names]
