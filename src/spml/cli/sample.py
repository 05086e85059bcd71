"""`spml sample`: draw rows to label fully."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from spml.cli.console import ForceOption, FormulasOption, RunArgument

EXAMPLE = "spml sample runs/photos --rows 20 --out check.csv"
_MOST_CLASSES = 30  # that are listed


def command(
    run: RunArgument,
    out: Annotated[Path, typer.Option(help="CSV file to write.")],
    rows: Annotated[int, typer.Option(help="Number of examples.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the random draw.")] = 0,
    copy: Annotated[
        Path | None, typer.Option(help="Images: copy those of the examples into this new folder, to look at them.")
    ] = None,
    allow_formulas: FormulasOption = False,
    force: ForceOption = False,
) -> None:
    """Draw examples to label fully, which improve recovered labels."""
    from spml.errors import InputError
    from spml.runs.written import check_before_loading, shell_path, suggested_file

    if out.suffix.lower() != ".csv":
        raise InputError(f"--out {out}: the file must end in .csv")
    check_before_loading(out, run, force=force)
    if copy is not None and copy.exists() and not (copy.is_dir() and not any(copy.iterdir())):
        raise InputError(f"--copy {copy} already exists: give the path of a new folder")
    from spml.recover.sample import copy_images, sample_rows, write_sample
    from spml.runs.folder import open_run
    from spml.runs.outputs import writing_output

    finished = open_run(run)
    with writing_output(out, run, force=force):
        sample = sample_rows(finished, rows, seed=seed)
        if copy is not None:
            copy_images(sample, finished, copy)
        write_sample(sample, finished, out, allow_formulas=allow_formulas)
    recovered = suggested_file(run, "recovered.csv")
    copied = "" if copy is None else f" Their images, in the same order: {copy}."
    typer.echo(
        f"{rows} examples: {out}.{copied} Complete the column label: write all labels of each example, and separate "
        f"labels with |. {allowed_labels(finished.classes, run)} Keep the weights. Then run `spml recover "
        f"{shell_path(run)} --labelled {shell_path(out)} --out {recovered}`."
    )


def allowed_labels(classes: Sequence[str], run: Path) -> str:
    """A sentence with the labels that may be written, or where they are listed."""
    if len(classes) > _MOST_CLASSES:
        return f"The {len(classes)} allowed labels are the `classes` in {run / 'run.json'}."
    return f"Allowed labels: {', '.join(classes)}."
