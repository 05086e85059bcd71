"""Errors for bad input. Each message states the problem and what to do."""

import difflib
import re
from collections.abc import Iterable


class InputError(ValueError):
    """A file, row, option or value that cannot be used.

    The message names it, states the problem and what to do. The command line prints the message and exits with code 2.

    Examples
    --------
    >>> import spml
    >>> try:
    ...     spml.load("no/such/run")
    ... except spml.InputError as error:
    ...     print("no/such/run" in str(error))
    True
    """


class DivergedError(InputError):
    """The training loss is no longer finite. Other settings, such as a lower learning rate, may help."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> str:
    """Return the message for a name that does not exist: the most similar one if there is one, and all.

    Examples
    --------
    >>> unknown_name("loss", "EM", ["an", "em"])
    "No loss named 'EM'; did you mean 'em'? Available losses: an, em."
    """
    names = sorted(known)
    similar = difflib.get_close_matches(str(name).lower().replace("_", "-"), names, n=1)
    hint = f"; did you mean {similar[0]!r}?" if similar else "."
    plural = f"{kind}es" if kind.endswith("s") else f"{kind}s"
    return f"No {kind} named {name!r}{hint} Available {plural}: {', '.join(names)}."


_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def one_line(text: str) -> str:
    """Return a message on one line, in which names cannot change how the terminal shows it.

    Line breaks become blanks; control characters and those that reverse the direction of writing are escaped.

    Examples
    --------
    >>> one_line("a\\x1b[31m.png:\\n  no image")
    'a\\\\x1b[31m.png: no image'
    """
    joined = re.sub(r"\s*[\r\n]\s*", " ", text.strip())
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), joined)


_TRAINING_PACKAGES = ("PIL", "msgspec", "pyarrow", "scipy", "sklearn", "timm", "torchvision")


def missing_package(error: ModuleNotFoundError, what: str) -> Exception:
    """Return an error that names the extra to install, or `error` itself if the package is in no extra."""
    package = (error.name or "").partition(".")[0]
    if package not in _TRAINING_PACKAGES:
        return error
    return InputError(f"{what} needs the package {package}, which is not installed: {install_command('train')}")


def install_command(extra: str) -> str:
    """How to install an extra. The name spml on PyPI belongs to another package, so that a checkout is needed.

    Examples
    --------
    >>> install_command("review")
    'pip install ".[review]" in the checkout of spml'
    """
    return f'pip install ".[{extra}]" in the checkout of spml'
