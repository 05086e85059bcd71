"""`spml pack`: make a benchmark data set from fully labelled data."""

from pathlib import Path
from typing import Annotated

import typer

EXAMPLE = "spml pack photos/ labels.csv --test 0.25 --out packs/photos"


def command(
    data: Annotated[
        Path,
        typer.Argument(
            help="A folder of images, a table of images or texts, or a feature matrix (.npy, sparse .npz).",
            metavar="DATA",
        ),
    ],
    labels: Annotated[
        Path,
        typer.Argument(
            help="Table (csv, tsv, parquet) of full labels: one 0/1 column per class, or label lists.", metavar="LABELS"
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to create.")],
    test: Annotated[float, typer.Option(help="Share of the rows used for testing.")] = 0.25,
    validation: Annotated[float, typer.Option(help="Share of the other rows used for validation.")] = 0.2,
    seed: Annotated[int, typer.Option(help="Seed of the split and of the single positives.")] = 1200,
    image_column: Annotated[str | None, typer.Option(help="Column of image paths.")] = None,
    text_column: Annotated[str | None, typer.Option(help="Column of texts.")] = None,
    label_column: Annotated[str | None, typer.Option(help="Column of label lists, such as a|b.")] = None,
    class_columns: Annotated[
        list[str] | None, typer.Option("--class-column", help="A 0/1 column of one class. Repeatable.")
    ] = None,
    id_column: Annotated[str | None, typer.Option(help="Column of row names.")] = None,
    split_column: Annotated[str | None, typer.Option(help="Column with train, validation or test.")] = None,
    separator: Annotated[str | None, typer.Option(help="Separator of label lists.")] = None,
) -> None:
    """Make a benchmark data set with simulated single positives from fully labelled data."""
    from spml.data.formats.pack import write_pack

    dataset = write_pack(
        data,
        labels,
        out,
        test=test,
        validation=validation,
        seed=seed,
        image_column=image_column,
        text_column=text_column,
        label_column=label_column,
        class_columns=class_columns,
        id_column=id_column,
        split_column=split_column,
        separator=separator,
    )
    rows = f"{len(dataset.train)} training, {len(dataset.validation)} validation and {len(dataset.test)} test rows"
    labels_per_row = dataset.full_labels(dataset.train).counts().positives.sum() / len(dataset.train)
    typer.echo(f"{out}: {rows}, {len(dataset.classes)} classes, {labels_per_row:.1f} labels per training row")
    options = f"--data {out.name}={out} --set data.{out.name}.k={labels_per_row:.1f} --methods an,em"
    typer.echo(f"Next: spml bench features {options} --out bench/{out.name}")
