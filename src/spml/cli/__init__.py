"""The command line: one module per command.

No module here imports anything heavy at the top; each command imports what it needs, so that `spml --help` is fast.
"""

import os
import re
import sys
import warnings
from typing import Annotated

import typer

from spml.boundary import run_guarded
from spml.cli import (
    annotate,
    bench,
    doctor,
    info,
    methods,
    new_method,
    pack,
    predict,
    quickstart,
    recover,
    report,
    review,
    sample,
    train,
)
from spml.errors import InputError, one_line

_MAY_BE_EMPTY = ("--prefix",)

app = typer.Typer(
    name="spml",
    help="Train multi-label classifiers from one label per example, and recover the labels that are missing.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for _module in (
    quickstart,
    train,
    predict,
    recover,
    sample,
    review,
    annotate,
    report,
    info,
    methods,
    bench,
    pack,
    new_method,
    doctor,
):
    _name = _module.__name__.rpartition(".")[2].replace("_", "-")
    app.command(_name, epilog=f"Example: {_module.EXAMPLE}")(_module.command)


def _print_version(show: bool) -> None:
    if show:
        from spml import __version__

        typer.echo(f"spml {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of `spml` itself."""


def main() -> None:
    """Run the command line.

    Whatever goes wrong is printed as one sentence. The exit code is 2 for errors in the user's input, 130 after an
    interruption and 70 for an unexpected error, whose traceback is written to a file.
    """
    warnings.formatwarning = _format_warning
    warnings.filterwarnings("ignore", module=r"PIL\.")  # on files that we read, or report ourselves
    code = run_guarded(_run_command, _with_option_names)
    if "torch.distributed" in sys.modules and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from spml.training.distributed import end_process

        end_process(code)
    sys.exit(code)


def _run_command() -> None:
    """Run the command of these arguments. An empty path would be the current folder."""
    arguments = sys.argv[2:]
    for before, argument in zip(["", *arguments], arguments, strict=False):
        option, equals, value = argument.partition("=") if argument.startswith("--") else (before, "=", argument)
        if equals and not value and option not in _MAY_BE_EMPTY:
            name = option if option.startswith("--") else "an argument"
            raise InputError(f"{name} is empty: give a value, or leave it out")
    app()


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Format our own warnings as one sentence, others as usual."""
    if category.__module__.startswith("spml."):
        return f"spml: {one_line(str(message))}\n"
    return _python_format(message, category, filename, lineno, line)


_python_format = warnings.formatwarning


def _with_option_names(message: str) -> str:
    """Write the options of the command as they are typed: `--label-column` for `label_column`.

    Names of several words are replaced everywhere outside quotes and paths; a name of one word is an ordinary word too,
    so it is replaced only as the subject of the message ("kind is", "k must", "seed, a number, must").
    """
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    command = typer.main.get_command(app).commands.get(name)  # type: ignore[attr-defined]
    for option in command.params if command else ():
        if option.param_type_name == "option" and option.name:
            verb = "" if "_" in option.name else "(?= is | must |, )"
            start = r"(?<![\w./'\"`-])" if "_" in option.name else "^"
            message = re.sub(rf"{start}{option.name}(?![\w'\"`/-]|\.\w){verb}", option.opts[0], message)
    return message
