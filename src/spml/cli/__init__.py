"""The command line: one module per command.

No module here imports anything heavy at the top; each command imports what it needs, so that `spml --help` is fast.
"""

import os
import re
import sys
import warnings
from typing import Annotated

import typer

from spml.cli import bench, doctor, info, methods, new_method, pack, predict, quickstart, recover, report, review, train
from spml.cli.console import is_first_process
from spml.errors import InputError, missing_package

app = typer.Typer(
    name="spml",
    help="Train multi-label classifiers from one label per example, and recover the labels that are missing.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for _module in (quickstart, train, predict, recover, review, report, info, methods, bench, pack, new_method, doctor):
    _name = _module.__name__.rpartition(".")[2].replace("_", "-")
    app.command(_name, epilog=f"Example: {_module.EXAMPLE}")(_module.command)

INTERRUPTED = 130  # typer's exit code after Ctrl-C


def _print_version(wanted: bool) -> None:
    if wanted:
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
    """Run the command line. Errors in the user's input are printed as one sentence; the exit code is then 2."""
    code = _exit_code()
    if "torch.distributed" in sys.modules and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from spml.training.distributed import end_process

        end_process(code)
    sys.exit(code)


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Format our own warnings as one sentence, others as usual."""
    if category.__module__.startswith("spml."):
        return f"spml: {message}\n"
    return _python_format(message, category, filename, lineno, line)


_python_format = warnings.formatwarning


def _exit_code() -> int:
    warnings.formatwarning = _format_warning
    try:
        app()
    except SystemExit as end:
        if end.code == INTERRUPTED and is_first_process():
            print("Interrupted. Run the same command to resume.", file=sys.stderr)
        return _fail(end.code) if isinstance(end.code, str) else end.code or 0
    except InputError as error:
        return _fail(_with_option_names(str(error)))
    except ModuleNotFoundError as error:
        known = missing_package(error, "this command")
        if known is error:
            raise
        return _fail(str(known))
    except OSError as error:
        return _fail(f"{error.filename or 'a file'}: {error.strerror or error}")
    except Exception as error:
        if not isinstance(error, MemoryError) and type(error).__name__ != "OutOfMemoryError":  # the latter is torch's
            raise
        return _fail("memory ran out: use a smaller --batch-size or --size, or fewer --workers")
    return 0


def _with_option_names(message: str) -> str:
    """Write the options of the command as they are typed: `--label-column` for `label_column`.

    Names of several words are replaced everywhere outside quotes and paths; a name of one word is an ordinary word too,
    so it is replaced only as the subject of the message ("kind is", "k must", "seed, a number, must").
    """
    command = typer.main.get_command(app).commands.get(sys.argv[1])  # type: ignore[attr-defined]
    for option in command.params if command else ():
        if option.param_type_name == "option" and option.name:
            verb = "" if "_" in option.name else "(?= is | must |, )"
            start = r"(?<![\w./'\"`-])" if "_" in option.name else "^"
            message = re.sub(rf"{start}{option.name}(?![\w'\"`/-]|\.\w){verb}", option.opts[0], message)
    return message


def _fail(message: str) -> int:
    print(f"spml: {message}", file=sys.stderr)
    return 2
