"""`spml annotate`: label images from nothing, in the browser."""

from pathlib import Path
from typing import Annotated

import typer

from spml.cli.review import BrowserOption, HostOption, PortOption, WhoOption, login_name, serve
from spml.errors import InputError

EXAMPLE = "spml annotate photos/ --classes classes.txt --out labels.csv"


def command(
    images: Annotated[Path, typer.Argument(help="Folder of images.", metavar="IMAGES")],
    classes: Annotated[Path, typer.Option(help="Text file with one class name per line.")],
    out: Annotated[Path, typer.Option(help="Table (.csv) for `spml train`; a database next to it keeps the answers.")],
    model: Annotated[
        Path | None, typer.Option(help="A run on the same classes: ask about classes that it finds likely first.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the draws. Default: a random one.", min=0)] = None,
    who: WhoOption = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = None,
    browser: BrowserOption = True,
) -> None:
    """Label images from nothing, by yes/no questions in the browser.

    For every image, classes are drawn at random until an answer is yes. Run the same command again to continue.
    """
    from spml.review.annotate import AnnotateApp, Annotation, find_images, read_classes, write_table
    from spml.runs.decisions import Decisions, Subject
    from spml.runs.outputs import check_not_of_a_run

    if out.suffix.lower() != ".csv":
        raise InputError(f"--out {out}: the table must end in .csv")
    database = out.with_suffix(".db")
    check_not_of_a_run(out)
    check_not_of_a_run(database)
    if out.exists() and not database.exists():
        raise InputError(f"--out {out} already exists and was not written by `spml annotate`: use another name")
    paths, names = find_images(images), read_classes(classes)
    likely = None if model is None else _likely(model, paths, names)
    subject = Subject([path.relative_to(images).as_posix() for path in paths], names)
    with Decisions(database, subject) as decisions:
        annotation = Annotation(decisions, seed=seed, likely=likely, model="" if model is None else str(model))
        app = AnnotateApp(annotation, paths, who or login_name())
        typer.echo(f"{len(paths):,} images, {len(names):,} classes. Answers: {database}")
        try:
            serve(app.asgi, host, port, browser)
        finally:
            app.close()
            written = write_table(decisions, paths, out)
        done = annotation.progress()
        typer.echo(
            f"\nStopped. {done['labelled']:,} of {len(paths):,} images have a label; {done['answers']:,} answers. "
            + (f"Next: spml train {out} --out RUN" if written else "There is no table yet.")
        )


def _likely(model: Path, paths, names):  # type: ignore[no-untyped-def]
    """Probabilities of the classes in a row, by a run."""
    import numpy as np

    from spml.predict.inputs import open_inputs
    from spml.predict.predictor import open_predictor

    predictor = open_predictor(model, "cpu")
    if predictor.spec.image_size is None:
        raise InputError(f"--model {model} was not trained on images: leave it out, or give a run on images")
    if set(predictor.classes) != set(names):
        raise InputError(f"--model {model} was trained on other classes than those in --classes")
    order = [predictor.classes.index(name) for name in names]

    def likely(row: int):  # type: ignore[no-untyped-def]
        try:
            block = next(open_inputs([paths[row]], predictor.spec).blocks)
            return predictor.probabilities(block)[0, order].astype(np.float64)
        except (InputError, StopIteration):  # an image that cannot be read: a uniform draw
            return np.full(len(names), 1.0)

    return likely
