"""`spml info`: show a run, or the rows and labels of data."""

from pathlib import Path
from typing import Annotated

import typer

from spml.cli.console import print_table
from spml.errors import InputError

EXAMPLE = "spml info runs/photos"


def command(
    path: Annotated[Path, typer.Argument(help="Folder of a run, or data in any supported format.", metavar="RUN|DATA")],
    kind: Annotated[str | None, typer.Option(help="Data: its format, if it cannot be detected.")] = None,
    paper: Annotated[
        str | None,
        typer.Option(
            help="Data: compare with the papers' counts of voc12, coco, nus or cub. Exit code 1 if they differ."
        ),
    ] = None,
) -> None:
    """Show a run's settings and best epoch; or the rows and labels of data, and whether its counts are the papers'."""
    if (path / "run.json").exists() or not (path.exists() or kind or paper or str(path) == "scenes"):
        from spml.runs.folder import describe

        if kind or paper:
            raise InputError(f"{path} is a run: --kind and --paper are for data")
        print_table(("", ""), [(name, str(value)) for name, value in describe(path).items()])
        return
    from spml.data import open_data
    from spml.data.describe import describe_data

    summary, differences = describe_data(open_data(path if str(path) != "scenes" else "scenes", kind=kind), paper)
    print_table(("", ""), list(summary.items()))
    for difference in differences:
        typer.echo(difference)
    if differences and paper:
        raise typer.Exit(1)
