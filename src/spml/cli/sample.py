"""`spml sample`: draw rows to label fully."""

from pathlib import Path
from typing import Annotated

import typer

from spml.cli.console import ForceOption, FormulasOption, RunArgument

EXAMPLE = "spml sample runs/photos --rows 20 --out check.csv"


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
    from spml.recover.sample import sample_rows, write_sample
    from spml.runs.folder import open_run
    from spml.runs.outputs import writing_output

    if out.suffix.lower() != ".csv":
        raise InputError(f"--out {out}: the file must end in .csv")
    finished = open_run(run)
    with writing_output(out, run, force=force):
        write_sample(sample_rows(finished, rows, seed=seed), finished, out, allow_formulas=allow_formulas)
    typer.echo(
        f"{rows} examples: {out}. Complete the column label, with | between labels, keep the weights, then run "
        f"`spml recover {run} --labelled {out} --out recovered.csv`."
    )
