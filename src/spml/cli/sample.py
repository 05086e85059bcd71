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
    allow_formulas: FormulasOption = False,
    force: ForceOption = False,
) -> None:
    """Draw examples to label fully, which improve recovered labels."""
    from spml.errors import InputError
    from spml.runs.written import check_before_loading, shell_path, suggested_file

    if out.suffix.lower() != ".csv":
        raise InputError(f"--out {out}: the file must end in .csv")
    check_before_loading(out, run, force=force)
    from spml.recover.sample import sample_rows, write_sample
    from spml.runs.folder import open_run
    from spml.runs.outputs import writing_output

    finished = open_run(run)
    with writing_output(out, run, force=force):
        write_sample(sample_rows(finished, rows, seed=seed), finished, out, allow_formulas=allow_formulas)
    recovered = suggested_file(run, "recovered.csv")
    typer.echo(
        f"{rows} examples: {out}. Complete the column label: write all labels of each example, and separate labels "
        f"with |. {allowed_labels(finished.classes, run)} Keep the weights. Then run `spml recover {shell_path(run)} "
        f"--labelled {shell_path(out)} --out {recovered}`."
    )


def allowed_labels(classes: Sequence[str], run: Path) -> str:
    """A sentence with the labels that may be written, or where they are listed."""
    if len(classes) > _MOST_CLASSES:
        return f"The {len(classes)} allowed labels are the `classes` in {run / 'run.json'}."
    return f"Allowed labels: {', '.join(classes)}."
