"""`spml recover`: write observed and recovered labels."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from spml.cli.console import ForceOption, FormulasOption, PrefixOption, RunArgument

EXAMPLE = "spml recover runs/photos --out recovered.csv"


def command(
    run: RunArgument,
    out: Annotated[Path, typer.Option(help="File to write.")],
    format: Annotated[
        str | None,
        typer.Option(help="csv, parquet, coco, label-studio or fiftyone. Default: from the ending of --out."),
    ] = None,
    labelled: Annotated[
        Path | None,
        typer.Option(
            help="CSV (columns name, label) with all labels of a few examples: fill in what `spml sample` wrote."
        ),
    ] = None,
    k: Annotated[
        float | None, typer.Option(help="Average number of labels per example. Default: the value given to train.")
    ] = None,
    prefer: Annotated[
        Literal["recall", "balanced", "precision"],
        typer.Option(
            help="balanced: labels more likely present than not, cautiously judged; precision: fewer; recall: more."
        ),
    ] = "balanced",
    threshold: Annotated[
        float | None, typer.Option(help="Confidence from which a label counts as present, instead of --prefer.")
    ] = None,
    precision: Annotated[
        float | None,
        typer.Option(help="The most labels of this precision, guaranteed with 90% confidence. Needs --labelled."),
    ] = None,
    decisions: Annotated[
        Path | None,
        typer.Option(help="Database of answers from `spml review`. Default: review.db in RUN, if any."),
    ] = None,
    prefix: PrefixOption = "",
    allow_formulas: FormulasOption = False,
    force: ForceOption = False,
) -> None:
    """Recover the missing labels of the training data, each with a confidence."""
    from spml.runs.written import check_before_loading

    check_before_loading(out, run, force=force)
    from spml.data.stores.texts import TextStore
    from spml.errors import InputError
    from spml.recover import export
    from spml.recover import recover as recover_labels
    from spml.recover.labelled import answers_of, read_labelled
    from spml.runs.folder import open_run
    from spml.runs.outputs import writing_output

    finished = open_run(run)
    with writing_output(out, run, force=force, inputs=(labelled, decisions)):
        full_labels = None if labelled is None else read_labelled(labelled, finished)
        if full_labels is not None and not full_labels.adds_to(finished.labels):
            raise InputError(
                f"{labelled}: every row has only the labels that were known before: complete the column label. If no "
                "row has another label, draw more rows with `spml sample --rows`"
            )
        answers = answers_of(finished, decisions)
        recovered = recover_labels(
            finished,
            labelled=full_labels,
            k=k,
            prefer=prefer,
            threshold=threshold,
            precision=precision,
            decisions=answers,
        )
        texts = finished.store.texts() if format == "label-studio" and isinstance(finished.store, TextStore) else None
        export(recovered, out, format=format, prefix=prefix, texts=texts, overwrite=True, allow_formulas=allow_formulas)
    for line in (recovered.summary(), *recovered.notes, f"Labels: {out}"):
        typer.echo(line)
