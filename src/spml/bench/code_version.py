"""A digest of the code that can change a result, so that a result belongs to the code that computed it."""

import ast
import functools
import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path

from spml.methods import METHODS

ROOT = Path(__file__).parents[1]
PARTS = (
    *("labels", "losses", "metrics", "methods", "models", "accel", "training", "bench/measure.py"),
    *("data/stores", "data/augment.py"),  # what readers return is part of a result's identity: they need not count
)


def code_version(method: str) -> str:
    """Digest of the source that decides the results of a method.

    It covers the packages that a training uses, and for a method that lives outside this package all modules of
    its own package, or its file. Comments, docstrings and formatting do not count.

    Parameters
    ----------
    method : str
        Name of the method.

    Returns
    -------
    str
        12 hexadecimal digits.
    """
    return _digest((_package_version(), *map(_parsed, plugin_files(method))))


@functools.cache
def _package_version() -> str:
    paths = [ROOT / part for part in PARTS]
    return _digest(f"{path.relative_to(ROOT)} {_parsed(path)}" for path in _python_files(paths))


def plugin_files(method: str) -> list[Path]:
    """Return the files of a method that lives outside this package: its top-level package, or its module."""
    modules = {part.__module__ for part in METHODS[method].__mro__}
    modules.add(getattr(METHODS[method], "function", METHODS[method]).__module__)
    paths: list[Path] = []
    for top in {module.partition(".")[0] for module in modules} - {"spml", "torch", "builtins", "typing", "abc"}:
        module = sys.modules[top]
        locations = list(getattr(module, "__path__", ())) or [getattr(module, "__file__", None)]
        paths += [Path(location) for location in locations if location]
    return list(_python_files(paths))


def _python_files(paths: Iterable[Path]) -> Iterable[Path]:
    for path in sorted(paths):
        yield from [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))


def _parsed(path: Path) -> str:
    """Return the syntax tree of a file without strings that stand alone, which are documentation."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [line for line in body if not _is_text(line)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _digest(texts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode())
    return digest.hexdigest()[:12]
