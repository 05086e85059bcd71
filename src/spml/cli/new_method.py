"""`spml new-method`: write a package skeleton for a method."""

from pathlib import Path
from typing import Annotated

import typer

EXAMPLE = "spml new-method my-loss"


def command(
    name: Annotated[str, typer.Argument(help="Name of the method, for example my-loss.", metavar="NAME")],
    out: Annotated[Path | None, typer.Option(help="Folder to create. Default: the name of the method.")] = None,
) -> None:
    """Write a package skeleton for a new method: a loss, its tests, and a protocol that compares it with others."""
    from spml.testing.skeleton import write_method_package

    folder = out or Path(name)
    files = write_method_package(name, folder)
    typer.echo(f"Wrote {', '.join(str(file.relative_to(folder)) for file in files)} in {folder}.")
    typer.echo(f'Next: cd {folder}; pip install -e ".[test]"; pytest; spml bench compare.toml --workers 2 --out bench')
