"""spml bench"""

from pathlib import Path
from typing import Annotated

import typer

from spml.cli.console import DeviceOption, print_table

EXAMPLE = "spml bench cole2021-linear --data voc12=packs/voc12 --methods an,role --seeds 0,1,2 --out bench/voc"


def command(
    name: Annotated[
        str | None, typer.Argument(help="Name of a protocol or study (see --list), or the path of your own .toml file.")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="name=path of a pack, an official layout, or a features*.npy file in a pack. Repeatable."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for runs, tables and report. If it holds an interrupted benchmark, it resumes."),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Comma-separated methods. Default: all methods of the protocol.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Comma-separated seeds. Default: the protocol's.")] = None,
    features: Annotated[
        bool, typer.Option("--features", help="Studies: train linear heads on features instead of networks.")
    ] = False,
    search: Annotated[
        str | None, typer.Option(help="Hyperparameters: published, grid, none or optuna. Default: the protocol's.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="optuna: trials per method and data set. Default: 20.", min=1)
    ] = None,
    storage: Annotated[
        str | None, typer.Option(help="optuna: shared storage, for example sqlite:///search.db.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Number of runs at the same time.", min=1)] = 1,
    device: DeviceOption = "auto",
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="key=value: change a value of the protocol. Repeatable.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the runs and their settings without running them.")
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="List protocols and studies.")] = False,
) -> None:
    """Run a paper's protocol, or a study, and compare the results with the paper's numbers."""
    if list_ or name is None:
        _print_list()
        return
    from spml.bench.command import bench

    bench(
        name,
        data=data or (),
        out=out,
        methods=methods,
        seeds=seeds,
        features=features,
        search=search,
        trials=trials,
        storage=storage,
        workers=workers,
        device=device,
        changes=set_ or (),
        dry_run=dry_run,
    )


def _print_list() -> None:
    from spml.bench.protocols import read_toml, shipped

    for kind in ("protocols", "studies"):
        rows = []
        for name in shipped(kind):
            raw = read_toml(kind, name)
            inputs = raw.get("kind", " or ".join(side for side in ("images", "features") if side in raw))
            where = f" ({raw['where']})" if raw.get("where") else ""
            rows.append((name, raw["title"] + where, {"linear": "features", "finetune": "images"}.get(inputs, inputs)))
        print_table(("name", "description", "inputs"), rows, title=kind)
