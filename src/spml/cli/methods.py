"""spml methods"""

from spml.cli.console import ImportOption, print_table

EXAMPLE = "spml methods"


def command(imports: ImportOption = None) -> None:
    """List the training methods: name, paper, requirements and a short description."""
    from spml.methods import METHODS
    from spml.methods.registry import import_plugins

    import_plugins(imports or ())
    rows = []
    for name, method in sorted(METHODS.items()):
        needs = method.needs
        required = [
            {"full": "full labels", "negatives": "known negatives"}.get(needs.labels, ""),
            "k" if needs.k else "",
            f"{len(needs.views)} views" if len(needs.views) > 1 else "",
            f"{needs.head} head" if needs.head != "linear" else "",
        ]
        rows.append((name, method.paper, ", ".join(filter(None, required)) or "one label per row", method.summary))
    print_table(("name", "paper", "needs", "description"), rows)
