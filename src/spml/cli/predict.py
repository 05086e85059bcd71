"""`spml predict`: label new examples."""

from pathlib import Path
from typing import Annotated, Any

import typer

from spml.cli.console import DeviceOption, ForceOption, FormulasOption, RunArgument
from spml.errors import InputError

EXAMPLE = "spml predict runs/photos new/*.jpg --out tags.csv"


def command(
    run: RunArgument,
    inputs: Annotated[
        list[Path],
        typer.Argument(
            help="Images, .txt files, folders of them, a feature matrix (.npy, .npz) or a table (csv, tsv, parquet).",
            metavar="INPUT",
        ),
    ],
    out: Annotated[Path, typer.Option(help="File to write: .csv, .parquet or .jsonl.")],
    threshold: Annotated[
        float | None, typer.Option(help="List labels with at least this probability. Default: 0.5.", min=0, max=1)
    ] = None,
    top: Annotated[int | None, typer.Option(help="List at least this many labels. Default: 1.", min=0)] = None,
    recover: Annotated[
        bool, typer.Option("--recover", help="List labels and confidences as `spml recover` does.")
    ] = False,
    label_column: Annotated[
        str | None, typer.Option(help="With --recover, for a table: column of observed labels.")
    ] = None,
    ray: Annotated[
        bool, typer.Option("--ray", help="Run on a Ray cluster: reads .parquet, writes a folder of .parquet files.")
    ] = False,
    device: DeviceOption = "auto",
    allow_formulas: FormulasOption = False,
    force: ForceOption = False,
) -> None:
    """Predict labels for new examples. Needs neither a GPU nor the training data."""
    from spml.runs.written import check_before_loading

    if not ray:
        check_before_loading(out, run, force=force)
    from spml.data.dataset import TABLES
    from spml.runs.folder import unfinished

    if not recover and (problem := unfinished(run)):
        typer.echo(f"spml: {problem}. Using its best epoch so far.", err=True)
    if recover and (threshold is not None or top is not None):
        raise InputError("--recover uses its own thresholds: leave --threshold and --top out")
    if label_column is not None and inputs[0].suffix.lower() not in TABLES and not ray:
        raise InputError(f"--label-column is a column of a table, and {inputs[0]} is none: leave it out")
    options: dict[str, Any] = {
        "threshold": 0.5 if threshold is None else threshold,
        "top": 1 if top is None else top,
        "recover": recover,
        "label_column": label_column,
    }
    if ray:
        from spml.predict.cluster import predict_table

        if len(inputs) != 1:
            raise InputError("--ray takes one .parquet file or one folder of .parquet files")
        count = predict_table(run, inputs[0], out, device=device, **options)
    else:
        from spml.predict.predictor import predict_files
        from spml.runs.outputs import writing_output

        with writing_output(out, run, force=force):
            count = predict_files(
                run, inputs, out, device=device, progress=True, allow_formulas=allow_formulas, **options
            )
    rows = "rows" if inputs[0].suffix.lower() in (".npy", ".npz", ".txt", *TABLES) else "images"
    typer.echo(f"Labels of {count} {rows if count != 1 else rows[:-1]}: {out}")
