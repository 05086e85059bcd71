"""`spml quickstart`: the demo on built-in data."""

from pathlib import Path
from typing import Annotated

import typer

from spml.cli.console import ForceOption, print_table

EXAMPLE = "spml quickstart --out demo"


def command(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("demo"),
    scale: Annotated[float, typer.Option(help="Fraction of the built-in data to use.", min=0.02, max=1.0)] = 1.0,
    force: ForceOption = False,
) -> None:
    """Train three methods on built-in images of handwritten digits, print a table and write a report."""
    from spml.bench.quickstart import DEMO_METHODS, REFERENCE, quickstart
    from spml.report import write_report
    from spml.runs.outputs import writing_output

    report_path = out / "report.html"
    with writing_output(report_path, *(out / method for method in DEMO_METHODS), force=force):  # checked first
        results = quickstart(out, scale=scale)
        write_report([result.run for result in results], report_path, overwrite=True)
    numbers = ("test mAP", "missing labels recovered", "precision")
    rows = [
        (
            result.run.method,
            "all labels" if result.run.method == REFERENCE else "one label per image",
            f"{100 * result.test_map:.1f}",
            f"{result.recovered} of {result.missing}",
            f"{100 * result.precision:.0f} %",
        )
        for result in results
    ]
    title = "Handwritten digits, one label kept per image"
    print_table(("method", "trained on", *numbers), rows, title=title, numbers=numbers)
    typer.echo(f"Report: {report_path}")
