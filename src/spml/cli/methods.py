"""`spml methods`: list methods and their settings."""

from typing import TYPE_CHECKING, Annotated

import typer

from spml.cli.console import ImportOption, print_table

if TYPE_CHECKING:
    from spml.methods.base import Method

EXAMPLE = "spml methods em-apl"


def command(
    name: Annotated[
        str | None, typer.Argument(help="A method, to show its settings and their ranges.", metavar="NAME")
    ] = None,
    imports: ImportOption = None,
) -> None:
    """List the training methods, or show one of them with its settings."""
    from spml.methods import METHODS, method
    from spml.methods.registry import import_plugins

    import_plugins(imports or ())
    if name is not None:
        _show(METHODS[name] if name in METHODS else type(method(name)))  # the latter raises an error that lists them
        return
    rows = [(name, cls.paper, _needs(cls), cls.summary) for name, cls in sorted(METHODS.items())]
    print_table(("name", "paper", "needs", "description"), rows)


def _needs(cls: type["Method"]) -> str:
    needs = cls.needs
    required = [
        {"full": "full labels", "negatives": "known negatives"}.get(needs.labels, ""),
        "k" if needs.k else "",
        f"{len(needs.views)} views" if len(needs.views) > 1 else "",
        f"{needs.head} head" if needs.head != "linear" else "",
    ]
    return ", ".join(filter(None, required)) or "one label per row"


def _show(cls: type["Method"]) -> None:
    """Print one method and its settings."""
    import dataclasses

    from spml.type_checks import type_name

    typer.echo(f"{cls.name}: {cls.summary}\nPaper: {cls.paper}. Needs: {_needs(cls)}.")
    types = cls.setting_types()
    rows = [(f.name, str(f.default), type_name(types[f.name])) for f in dataclasses.fields(cls.Settings)]
    if rows:
        print_table(("setting", "default", "range"), rows)
    else:
        typer.echo("It has no settings.")
