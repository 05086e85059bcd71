"""`spml report`: write an HTML report."""

from pathlib import Path
from typing import Annotated

import typer

from spml.cli.console import ForceOption
from spml.errors import InputError

EXAMPLE = "spml report runs/photos --out report.html"


def command(
    runs: Annotated[list[Path], typer.Argument(help="One or more folders of finished runs.", metavar="RUN")],
    out: Annotated[Path, typer.Option(help="HTML file to write.")],
    landscape: Annotated[
        bool, typer.Option("--landscape", help="Also plot the loss landscape around each network (takes minutes).")
    ] = False,
    force: ForceOption = False,
) -> None:
    """Write an HTML report of one run, or a comparison of several: curves, tables and pictures in one file."""
    from spml.runs.written import check_before_loading

    check_before_loading(out, runs[0], force=force)
    from spml.report import loss_landscape, write_report
    from spml.runs.folder import open_run
    from spml.runs.outputs import writing_output

    if landscape and len(runs) < 2:
        raise InputError("--landscape compares networks: pass at least two runs")
    finished = [open_run(run) for run in runs]
    names = [run.name for run in finished]
    if landscape and len(set(names)) < len(names):  # the names are what tells the landscapes apart
        raise InputError("--landscape shows runs by the names of their folders, which must differ: rename one of them")
    with writing_output(out, *runs, force=force):
        landscapes = {run.name: loss_landscape(run) for run in finished} if landscape else None
        write_report(finished, out, landscapes=landscapes, overwrite=True)
    typer.echo(f"Report: {out}")
