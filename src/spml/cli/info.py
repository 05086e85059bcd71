"""spml info"""

from spml.cli.console import RunArgument, print_table

EXAMPLE = "spml info runs/photos"


def command(run: RunArgument) -> None:
    """Show a run's data, method, settings, best epoch and files."""
    from spml.runs.folder import describe

    print_table(("", ""), [(name, str(value)) for name, value in describe(run).items()])
