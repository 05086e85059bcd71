"""The report: one HTML file that needs nothing beside it."""

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from spml.errors import InputError
from spml.recover import recover
from spml.report.beliefs import Beliefs, Recovered
from spml.report.comparison import Landscapes, comparison, title_of_several
from spml.report.markup import Html, join, tag
from spml.report.sections import Section, data_name, sections, summary
from spml.report.studies import Study, studies_section
from spml.report.theme import script, style
from spml.runs.files import atomic_path, explain_write_errors
from spml.runs.folder import RunFolder


def write_report(
    runs: Sequence[RunFolder],
    path: str | Path,
    *,
    recovered: Sequence[Recovered | None] | None = None,
    studies: Sequence[Study] = (),
    landscapes: Landscapes | None = None,
) -> None:
    """Write the report of one run, or the comparison of several, whole or not at all.

    `recovered` is what `spml.recover.recover` gave for each run, None for a run whose plain probabilities shall count,
    present from one half on; without it the report recovers the labels itself.
    `studies` are tables of results to draw, `landscapes` loss landscapes by run name.
    """
    if not runs:
        raise InputError("a report needs at least one run.")
    if recovered is not None and len(recovered) != len(runs):
        raise InputError(f"there are {len(recovered)} sets of recovered labels for {len(runs)} runs.")
    labels = [recover(run) for run in runs] if recovered is None else recovered
    beliefs = [Beliefs(run, of_run) for run, of_run in zip(runs, labels, strict=True)]
    extra = [studies_section(studies)] if studies else []
    if len(runs) == 1:
        text = _one(beliefs[0], extra)
    else:
        title, kicker, opening = title_of_several(beliefs)
        text = page(title, kicker, opening, list(comparison(beliefs, landscapes or {}, extra)))
    _write(Path(path), text)


def _one(beliefs: Beliefs, extra: Sequence[Section]) -> str:
    run = beliefs.run
    kicker = f"Trained with {run.method} · {run.name}"
    return page(f"Recovered labels: {data_name(run)}", kicker, summary(beliefs), [*sections(beliefs), *extra])


def page(title: str, kicker: str, opening: Html, parts: Sequence[Section]) -> str:
    """The whole document. Its policy lets nothing load and no script run but its own."""
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
        tag("footer", tag("p", "Made by spml. This file is complete in itself: it can be kept, moved and mailed.")),
    )
    return join(Html("<!doctype html>\n"), tag("html", head, body, lang="en"))


def _write(path: Path, text: str) -> None:
    with explain_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary, explain_write_errors(path):
        temporary.write_text(text, encoding="utf-8")
