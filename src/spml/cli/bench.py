"""`spml bench`: run a protocol or a study, and compare methods."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spml.cli.console import DeviceOption, ImportOption, print_table
from spml.errors import InputError

if TYPE_CHECKING:
    from spml.bench.run import BenchTable

EXAMPLE = "spml bench cole2021-linear --data voc12=packs/voc12 --methods an,role --seeds 0,1,2 --out bench/voc"


def command(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of a protocol or study (see --list), or the path of your own .toml file.", metavar="NAME"
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="name=path of data with full labels, or of a features*.npy file in a pack. Repeatable. "
            "Not needed for --dry-run."
        ),
    ] = None,
    kind: Annotated[str | None, typer.Option(help="Format of the data, if it cannot be detected.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for runs, tables and report. If it holds an interrupted benchmark, that resumes."),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Comma-separated methods. Default: all methods of the protocol.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Comma-separated seeds. Default: the protocol's.")] = None,
    features: Annotated[
        bool, typer.Option("--features", help="Studies: train linear heads on features instead of networks.")
    ] = False,
    head: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated heads to run every method with: own (each method's), linear, attention. Default: own."
        ),
    ] = None,
    search: Annotated[
        str | None, typer.Option(help="Hyperparameters: published, grid, none or optuna. Default: the protocol's.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="optuna: trials per method and data set. Default: 20.", min=1)
    ] = None,
    storage: Annotated[
        str | None, typer.Option(help="optuna: shared storage, for example sqlite:///search.db.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Number of concurrent runs.", min=1)] = 1,
    device: DeviceOption = "auto",
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="key=value: change a value of the protocol. Repeatable.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the runs, the paper's numbers and an estimate of GPU hours.")
    ] = False,
    imports: ImportOption = None,
    list_: Annotated[bool, typer.Option("--list", help="List protocols and studies.")] = False,
) -> None:
    """Run a paper's protocol, or a study, and compare the results with the paper's numbers."""
    from spml.bench.plan import list_files, parse_seeds, plan
    from spml.methods.registry import import_plugins

    import_plugins(imports or ())
    if list_ or name is None:
        for title, rows in list_files().items():
            print_table(("name", "description", "inputs"), rows, title=title)
        return
    from spml.training.device import choose_device

    choose_device(device)  # validate early, before any data is read
    if out is None and not dry_run:
        raise InputError("no folder for the results: pass --out DIR")
    planned = plan(
        name,
        data or (),
        kind=kind,
        methods=None if methods is None else methods.split(","),
        seeds=parse_seeds(seeds),
        features=features,
        heads=() if head is None else head.split(","),
        search=search,
        trials=trials,
        storage=storage,
        changes=set_ or (),
        need_data=not dry_run,
    )
    if dry_run:
        from spml.bench.dry_run import dry_run as list_runs

        _print(list_runs(planned, out), width=200)
        return
    assert out is not None
    from spml.bench.run import run
    from spml.runs.outputs import check_results_folder

    check_results_folder(
        out, "runs", ("runs.csv", "table.csv", "table.md", "pairs.csv", "intervals.csv", "report.html")
    )
    for note in planned.notes:
        typer.echo(note)
    _print(run(planned, out, device=device, workers=workers, notify=typer.echo))
    typer.echo(f"Tables: {out / 'table.md'}, {out / 'runs.csv'}. Report: {out / 'report.html'}")


def _print(table: "BenchTable", width: int | None = None) -> None:
    print_table(table.header, table.rows, title=table.title, width=width)
    for note in table.notes:
        typer.echo(note)
