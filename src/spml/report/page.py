"""The report: one self-contained HTML file."""

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from spml.errors import InputError
from spml.recover import Recovered, recover
from spml.report.comparison import Landscapes, comparison, comparison_opening
from spml.report.markup import Html, join, tag
from spml.report.sections import Section, data_name, sections, summary
from spml.report.tables import RunTables
from spml.report.theme import script, style
from spml.runs.files import atomic_path, explain_write_errors
from spml.runs.folder import RunFolder
from spml.runs.outputs import check_overwrite


def write_report(
    runs: Sequence[RunFolder],
    path: str | Path,
    *,
    recovered: Sequence[Recovered | None] | None = None,
    landscapes: Landscapes | None = None,
    overwrite: bool = False,
) -> None:
    """Write an HTML report of one run, or a comparison of several.

    Parameters
    ----------
    runs : sequence of RunFolder
        Finished runs, from `open_run`.
    path : str or Path
        The HTML file. It is written atomically.
    recovered : sequence of Recovered or None, optional
        The result of `spml.recover.recover` for each run. None instead of a result uses the run's plain
        probabilities, with the method's F1 threshold. By default the report recovers the labels itself.
    landscapes : mapping of str to Landscape, optional
        Loss landscapes by run name.
    overwrite : bool
        Whether to replace an existing file.

    Raises
    ------
    InputError
        If there are no runs, if they cannot be compared, or if the file cannot be written.
    """
    check_overwrite(Path(path), overwrite)
    if not runs:
        raise InputError("a report needs at least one run")
    if recovered is not None and len(recovered) != len(runs):
        raise InputError(f"got {len(recovered)} sets of recovered labels for {len(runs)} runs: give one per run")
    results = [recover(run) for run in runs] if recovered is None else recovered
    tables = [RunTables(run, result) for run, result in zip(runs, results, strict=True)]
    if len(runs) == 1:
        text = _single_run_page(tables[0])
    else:
        title, kicker, opening = comparison_opening(tables)
        text = page(title, kicker, opening, list(comparison(tables, landscapes or {})))
    _write(Path(path), text)


def _single_run_page(tables: RunTables) -> str:
    run = tables.run
    kicker = f"Method {run.method} · run {run.name}"
    return page(f"Recovered labels: {data_name(run)}", kicker, summary(tables), list(sections(tables)))


def page(title: str, kicker: str, opening: Html, parts: Sequence[Section]) -> str:
    """Return the HTML document. Its content security policy forbids loading anything and running other scripts."""
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(style())),
        tag("script", Html(script())),
    )
    links = (tag("li", tag("a", part.title, href=f"#{part.id}")) for part in parts)
    body = tag(
        "body",
        tag(
            "header",
            tag("div", tag("p", kicker, class_="kicker name"), tag("h1", title)),
            tag("button", "Dark", id="theme", type="button", hidden=True),
        ),
        tag("main", opening, tag("nav", tag("ul", *links), aria_label="Sections"), *(part.html() for part in parts)),
        tag("footer", tag("p", "Made by spml. This file is self-contained: you can store, move and send it.")),
    )
    return join(Html("<!doctype html>\n"), tag("html", head, body, lang="en"))


def _write(path: Path, text: str) -> None:
    with explain_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary, explain_write_errors(path):
        temporary.write_text(text, encoding="utf-8")
