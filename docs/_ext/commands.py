"""The directive `commands`: every command with its arguments and options, from the command line itself."""

import re
from collections.abc import Iterator
from typing import Any

import typer.main
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from spml.cli import app as command_line


class Commands(SphinxDirective):
    """One section per command."""

    def run(self) -> list[nodes.Node]:
        group = typer.main.get_command(command_line)
        return self.parse_text_to_nodes("\n".join(_page(group.commands)), allow_section_headings=True)


def _page(commands: dict[str, Any]) -> Iterator[str]:
    for name, command in commands.items():
        arguments = [_metavar(part) for part in command.params if part.param_type_name == "argument"]
        text = " ".join(command.help.split())
        yield from (f"## {name}", "", "```", " ".join(["spml", name, *arguments, "[OPTIONS]"]), "```", "", text, "")
        if command.epilog:
            yield from (command.epilog.replace("Example: ", "Example: `") + "`", "")
        for panel, options in _panels(command.params).items():
            yield from ([f"**{panel}**", ""] if panel else [])
            yield from ("| option | meaning |", "| --- | --- |")
            yield from (f"| {_names(part)} | {_meaning(part)} |" for part in options)
            yield ""


def _panels(options: list[Any]) -> dict[str, list[Any]]:
    """The options by the panel of the help text that shows them; "" is the first."""
    panels: dict[str, list[Any]] = {}
    for option in options:
        panels.setdefault(getattr(option, "rich_help_panel", None) or "", []).append(option)
    return panels


def _metavar(part: Any) -> str:
    name = (part.metavar or part.name.upper()).strip("[]") + ("…" if part.nargs == -1 else "")
    return name if part.required else f"[{name}]"


def _names(part: Any) -> str:
    if part.param_type_name == "argument":
        return f"`{(part.metavar or part.name.upper()).strip('[]')}`"
    return ", ".join(f"`{name}`" for name in part.opts if name.startswith("-"))


def _meaning(part: Any) -> str:
    text = " ".join((part.help or "").split()).replace("|", r"\|")
    text = re.sub(r"(?<!`)--[a-z][\w-]*", r"`\g<0>`", text)  # else two hyphens become a dash
    if part.required:
        return f"{text} **Required.**" if part.param_type_name != "argument" else text
    quiet = part.default in (None, False, ()) or "efault" in text
    return text if quiet else f"{text} Default: `{part.default}`."


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
