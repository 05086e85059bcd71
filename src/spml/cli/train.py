"""`spml train`: train a classifier."""

from pathlib import Path
from typing import Annotated, Any

import typer

from spml.cli.console import DeviceOption, ImportOption, echo
from spml.errors import InputError

EXAMPLE = "spml train photos/ --out runs/photos"
_IMAGES, _FEATURES, _DATA = "Images", "Features and texts", "Reading the data"  # groups of options in --help


def command(
    data: Annotated[
        str,
        typer.Argument(
            help="A folder with one subfolder per class (images or .txt files), a table (csv, tsv, parquet) of images, "
            "texts or numbers with a label column or one 0/1 column per class, a feature matrix (.npy, sparse .npz), "
            "COCO json, a VOC folder, or `scenes` (built in).",
            metavar="DATA",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Run folder. If it holds an interrupted run, training resumes.")],
    method: Annotated[str, typer.Option(help="Training method; `spml methods` lists them.")] = "auto",
    setting: Annotated[
        list[str] | None, typer.Option(help="A setting of the method, as name=value. Repeatable.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_IMAGES,
            help="Backbone: lite0 to lite2, small or a timm model. Default: lite2; lite0 where a CPU trains all of it.",
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_IMAGES,
            help="File (.safetensors) with the weights of --model, read instead of downloading them.",
        ),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_IMAGES, help="linear, label-wise, attention or cam. Default: chosen by the method."
        ),
    ] = None,
    size: Annotated[
        int | None, typer.Option(rich_help_panel=_IMAGES, help="Image size in pixels. Default: the model's own.", min=1)
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=_IMAGES,
            help="Passes over the training data. Default: 3,000 steps, at least 10 epochs.",
            min=1,
        ),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(rich_help_panel=_IMAGES, help="Examples per step. Default: 16.", min=1)
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(rich_help_panel=_IMAGES, help="Peak learning rate. Default: 1e-4.")
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(rich_help_panel=_FEATURES, help="The learners to try: auto (default), linear or trees."),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_FEATURES,
            help="Texts: tfidf (default), words, chars, words+chars, wordllama, or a model of sentence-transformers.",
        ),
    ] = None,
    effort: Annotated[
        str,
        typer.Option(
            rich_help_panel=_IMAGES,
            help="quick (classifier on features of the frozen network, images at one size), thorough (images at two "
            "sizes, then the whole network from there; the better one is kept), or normal (thorough on a GPU or with "
            "--minutes, otherwise without the whole network).",
        ),
    ] = "normal",
    minutes: Annotated[
        float | None,
        typer.Option(rich_help_panel=_IMAGES, help="Time limit, in which the whole network is trained too."),
    ] = None,
    k: Annotated[
        float | None,
        typer.Option(help="Average number of labels per example. Required by some methods; improves `recover`."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    device: DeviceOption = "auto",
    kind: Annotated[
        str | None, typer.Option(rich_help_panel=_DATA, help="Data format, if it cannot be detected.")
    ] = None,
    image_column: Annotated[
        str | None, typer.Option(rich_help_panel=_DATA, help="Tables: column of image paths.")
    ] = None,
    text_column: Annotated[str | None, typer.Option(rich_help_panel=_DATA, help="Tables: column of texts.")] = None,
    label_column: Annotated[str | None, typer.Option(rich_help_panel=_DATA, help="Tables: column of labels.")] = None,
    class_columns: Annotated[
        list[str] | None,
        typer.Option(
            "--class-column",
            rich_help_panel=_DATA,
            help="Tables: a 0/1 column of one class. Repeatable. Default: detected.",
        ),
    ] = None,
    zeros: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_DATA, help="Tables: what 0 means in class columns, unknown (default) or negative."
        ),
    ] = None,
    split_column: Annotated[
        str | None, typer.Option(rich_help_panel=_DATA, help="Tables: column with train, validation or test.")
    ] = None,
    id_column: Annotated[
        str | None, typer.Option(rich_help_panel=_DATA, help="Tables: column of unique row names.")
    ] = None,
    image_root: Annotated[
        Path | None, typer.Option(rich_help_panel=_DATA, help="Tables: folder that image paths are relative to.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(rich_help_panel=_DATA, help="Feature matrix: file with the labels.")
    ] = None,
    on_bad_image: Annotated[
        str | None, typer.Option(rich_help_panel=_DATA, help="Unreadable images: error (default) or skip.")
    ] = None,
    decisions: Annotated[
        Path | None, typer.Option(help="Database of answers from `spml review`, learned as verified labels.")
    ] = None,
    track: Annotated[str | None, typer.Option(help="Also log to tensorboard or trackio.")] = None,
    imports: ImportOption = None,
) -> None:
    """Train a classifier from one label per example.

    Training can be interrupted; run the same command again to resume.
    """
    from spml.methods.registry import import_plugins
    from spml.runs.written import shell_path, suggested_file
    from spml.training.options import TrainOptions
    from spml.training.train_data import train_data

    import_plugins(imports or ())
    options = TrainOptions(
        method=method,
        settings=parse_settings(setting or []),
        model=model,
        weights=weights,
        head=head,
        size=size,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        base=base,
        encoder=encoder,
        effort=effort,
        minutes=minutes,
        k=k,
        seed=seed,
        device=device,
        track=track,
        decisions=decisions,
    )
    data_options = {
        "kind": kind,
        "image_column": image_column,
        "text_column": text_column,
        "split_column": split_column,
        "id_column": id_column,
        "label_column": label_column,
        "class_columns": class_columns,
        "zeros": zeros,
        "image_root": image_root,
        "labels": labels,
        "on_bad_image": on_bad_image,
    }
    best = train_data(data, out, options, data_options=data_options, notify=echo)
    result = best["summary"] if "summary" in best else f"Best epoch: {best['epoch']}"
    echo(f"{result}.")
    if best["score"] is not None:
        echo(f"Held-out score: {100 * best['score']:.1f} of 100. Compare it only between runs on the same data.")
    echo(f"Done. Next: spml recover {shell_path(out)} --out {suggested_file(out, 'recovered.csv')}")


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """Parse name=value pairs; numbers, true and false become numbers and booleans."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise InputError(f"--setting {pair} is not of the form name=value")
        if name in settings:
            raise InputError(f"--setting {name} is given twice: pass it once")
        settings[name] = _value(text)
    return settings


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
