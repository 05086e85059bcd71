"""`spml review`: confirm or correct recovered labels in the browser."""

import os
from pathlib import Path
from typing import Annotated

import typer

from spml.cli.console import ForceOption, FormulasOption, PrefixOption, RunArgument
from spml.errors import InputError

EXAMPLE = "spml review runs/photos"

HostOption = Annotated[str, typer.Option(help="Address to listen on. Other computers can connect to 0.0.0.0.")]
PortOption = Annotated[
    int | None, typer.Option(help="Port. Default: 8733, or a free one if that is taken.", min=0, max=65535)
]
BrowserOption = Annotated[bool, typer.Option("--browser/--no-browser", help="Whether to open the page in the browser.")]
WhoOption = Annotated[str | None, typer.Option(help="Your name, recorded with each answer. Default: the login name.")]


def command(
    run: RunArgument,
    decisions: Annotated[
        Path | None, typer.Option(help="Database of answers. Default: review.db in the run folder.")
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(help="Write the answers to .csv, .parquet or .json (Label Studio) instead of opening the page."),
    ] = None,
    import_: Annotated[
        Path | None,
        typer.Option("--import", help="Add the annotations of a Label Studio export (JSON); the page stays closed."),
    ] = None,
    rest_absent: Annotated[
        bool, typer.Option(help="With --import: labels that an annotation does not mention are absent.")
    ] = False,
    who: WhoOption = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = None,
    browser: BrowserOption = True,
    prefix: PrefixOption = "",
    allow_formulas: FormulasOption = False,
    force: ForceOption = False,
) -> None:
    """Confirm or correct the labels that a model recovered, in the browser.

    Every answer is saved at once. `spml train DATA --decisions review.db` learns from the answers.
    """
    from spml.runs.written import check_before_loading, shell_path, suggested_file

    if export is not None:
        check_before_loading(export, run, force=force)
    from contextlib import ExitStack
    from tempfile import TemporaryDirectory

    from spml.data.stores.texts import TextStore
    from spml.review.app import ReviewApp, open_decisions, subject_of
    from spml.review.exchange import check_export, export_decisions, import_label_studio, read_label_studio
    from spml.runs.decisions import DECISIONS
    from spml.runs.folder import open_run
    from spml.runs.outputs import writing_output

    if rest_absent and import_ is None:
        raise InputError("--rest-absent applies only to --import")
    finished = open_run(run)
    texts = None
    if (import_ or export) and isinstance(finished.store, TextStore):
        texts = finished.store.texts()
    if import_ is not None:  # both are checked before a database is created
        read_label_studio(import_, subject_of(finished), texts)
    if export is not None:
        check_export(export, prefix)
    with ExitStack() as stack:
        if export is not None:
            stack.enter_context(writing_output(export, run, force=force))
        if export is not None and import_ is None and not os.path.lexists(decisions or run / DECISIONS):
            if decisions is not None:
                raise InputError(f"{decisions}: no such file")
            decisions = Path(stack.enter_context(TemporaryDirectory()), DECISIONS)  # the run stays as it is
        answers = stack.enter_context(open_decisions(finished, decisions))
        if import_ is not None:
            number = import_label_studio(answers, import_, texts=texts, rest_absent=rest_absent)
            typer.echo(f"New answers: {number:,}, in {answers.path}")
        if export is not None:
            number = export_decisions(answers, export, texts=texts, prefix=prefix, allow_formulas=allow_formulas)
            typer.echo(f"Answers: {number:,}, in {export}")
        if import_ is None and export is None:
            app = ReviewApp(finished, answers, who or login_name())
            app.start()
            try:
                serve(app.asgi, host, port, browser)
            finally:
                app.close()
            number = len(answers.current())
            typer.echo(f"\nStopped. {number:,} answers are saved in {answers.path}")
            if number:
                file = shell_path(answers.path)
                use = "" if decisions is None else f" --decisions {file}"
                typer.echo(
                    f"Next: spml recover {shell_path(run)}{use} --out {suggested_file(run, 'recovered.csv')}  "
                    "# includes the answers\n"
                    f"  or: spml train DATA --decisions {file} --out NEW_RUN  # for better labels of new data"
                )


def serve(application, host: str, port: int | None, browser: bool) -> None:  # type: ignore[no-untyped-def]
    """Print the address, open the browser and serve until Ctrl-C."""
    from spml.review.web import Server

    server = Server(host, port)
    typer.echo(f"Open {server.address}\nPress Ctrl-C to stop. Every answer is saved at once.")
    if not server.is_local:
        typer.echo(
            f"Warning: with --host {host}, everybody who can reach this computer and knows the address above can see "
            "the data and answer. The connection is not encrypted."
        )
    server.run(application(server.token, server.accepts), browser=browser)


def login_name() -> str:
    """Return the name of the person at this computer."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # no entry for this user
        return ""
