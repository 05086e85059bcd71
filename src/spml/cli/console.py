"""Printing, and arguments that several commands share."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

RunArgument = Annotated[Path, typer.Argument(help="Folder of a finished run.", metavar="RUN")]
ImportOption = Annotated[
    list[str] | None,
    typer.Option("--import", help="Package or Python file that registers methods. Repeatable.", metavar="NAME|FILE.py"),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]
FormulasOption = Annotated[
    bool,
    typer.Option(
        "--allow-formulas",
        help="CSV: write cells starting with =, +, - or @ as they are. Default: an apostrophe in front keeps "
        "spreadsheets from running them.",
    ),
]
PrefixOption = Annotated[
    str,
    typer.Option(
        help="JSON: put before the path of every image, such as /data/local-files/?d=photos/ for Label Studio."
    ),
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda.")]


def is_first_process() -> bool:
    """Return whether this is the only process, or the first of those started by torchrun."""
    return os.environ.get("RANK", "0") == "0"


def echo(text: str) -> None:
    """Print a line, once for all processes."""
    if is_first_process():
        typer.echo(text)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str | None = None,
    numbers: Sequence[str] = (),
    width: int | None = None,
) -> None:
    """Print a table; columns named in `numbers` are aligned to the right, the first column never wraps."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, show_header=any(columns))
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if column in numbers else "left", no_wrap=index == 0)
    for row in rows:
        table.add_row(*map(escape, row))
    Console(width=width).print(table)
