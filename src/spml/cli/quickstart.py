"""spml quickstart"""

from pathlib import Path
from typing import Annotated

import typer

from spml.cli.console import print_table

EXAMPLE = "spml quickstart --out demo"


def command(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("demo"),
    scale: Annotated[float, typer.Option(help="Fraction of the built-in data to use.", min=0.02, max=1.0)] = 1.0,
) -> None:
    """Train three methods on built-in images of handwritten digits, print a table and write a report."""
    from spml.bench.quickstart import REFERENCE, quickstart
    from spml.report import write_report

    results = quickstart(out, scale=scale)
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
    report_path = out / "report.html"
    write_report([result.run for result in results], report_path)
    typer.echo(f"Report: {report_path}")
