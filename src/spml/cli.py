"""The command line: spml …

Nothing heavy is imported here: each command imports what it needs, so that `spml --help` answers at once.
"""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from spml.bench.command import EXAMPLE, bench
from spml.errors import InputError

app = typer.Typer(
    name="spml",
    help="One label a row in, all labels out: multi-label classifiers from single positive labels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

RunFolder = Annotated[Path, typer.Argument(help="Folder of a finished run.", metavar="RUN")]


@app.command(epilog="Example: spml quickstart --out demo")
def quickstart(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("demo"),
    scale: Annotated[float, typer.Option(help="Share of the built-in data to use.", min=0.02, max=1.0)] = 1.0,
) -> None:
    """Train three methods on built-in scenes of handwritten digits, print a table, write a report."""
    from rich.console import Console
    from rich.table import Table

    from spml.bench.quickstart import REFERENCE
    from spml.bench.quickstart import quickstart as run_quickstart
    from spml.report import write_report

    outcomes = run_quickstart(out, scale=scale)
    table = Table(title="Scenes of handwritten digits, one label kept a scene")
    for column in ("method", "learns from", "test mAP", "missing labels recovered", "precision"):
        table.add_column(column, justify="left" if column in ("method", "learns from") else "right")
    for outcome in outcomes:
        name = outcome.run.method
        table.add_row(
            name,
            "all labels" if name == REFERENCE else "one label a scene",
            f"{100 * outcome.test_map:.1f}",
            f"{outcome.recovered} of {outcome.missing}",
            f"{100 * outcome.precision:.0f} %",
        )
    Console().print(table)
    report_path = out / "report.html"
    write_report([outcome.run for outcome in outcomes], report_path)
    typer.echo(f"Report: {report_path}")


@app.command(epilog="Example: spml train photos/ --out runs/photos")
def train(
    data: Annotated[
        str, typer.Argument(help="A folder per class, a table (csv, parquet), COCO json, VOC folder, .npy, or scenes.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the run; an interrupted run in it goes on.")],
    method: Annotated[str, typer.Option(help="How to learn; `spml methods` lists them.")] = "auto",
    setting: Annotated[list[str] | None, typer.Option(help="A setting of the method, name=value; repeatable.")] = None,
    model: Annotated[
        str | None, typer.Option(help="lite0 (the default), lite1, lite2, small, or any timm name.")
    ] = None,
    head: Annotated[
        str | None, typer.Option(help="linear, label-wise, attention or cam; by default the method's own.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(help="Side of the images in pixels; by default the model's.", min=1)
    ] = None,
    epochs: Annotated[int, typer.Option(min=1)] = 10,
    batch_size: Annotated[int, typer.Option(min=1)] = 16,
    learning_rate: Annotated[
        float | None, typer.Option(help="Highest learning rate; by default 1e-4, on features 1e-3.")
    ] = None,
    k: Annotated[
        float | None,
        typer.Option(help="Mean number of labels of a row, if you know it: some methods need it, `recover` gains."),
    ] = None,
    seed: int = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    kind: Annotated[str | None, typer.Option(help="What DATA is, where it cannot be seen.")] = None,
    image_column: Annotated[str | None, typer.Option(help="Of a table: the column of image paths.")] = None,
    label_column: Annotated[str | None, typer.Option(help="Of a table: the column of labels.")] = None,
    image_root: Annotated[Path | None, typer.Option(help="Of a table: where its image paths start.")] = None,
    labels: Annotated[Path | None, typer.Option(help="Of a .npy feature matrix: the file of labels.")] = None,
    on_bad_image: Annotated[str | None, typer.Option(help="error (default) or skip.")] = None,
    track: Annotated[str | None, typer.Option(help="Also log to tensorboard or trackio.")] = None,
) -> None:
    """Train a classifier from one label a row. Interrupt it any time; the same command goes on."""
    from spml.train.job import TrainJob, train_job

    given = {
        "kind": kind,
        "image_column": image_column,
        "label_column": label_column,
        "image_root": None if image_root is None else str(image_root.resolve()),
        "labels": None if labels is None else str(labels.resolve()),
        "on_bad_image": on_bad_image,
    }
    job = TrainJob(
        data=data,
        options={name: value for name, value in given.items() if value is not None},
        method=method,
        settings=_settings(setting or []),
        model=model,
        head=head,
        size=size,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        k=k,
        seed=seed,
        device=device,
        track=track,
    )
    best = train_job(job, out, say=_say)
    score = "" if best["score"] is None else f", held-out score {best['score']:.3f}"
    _say(f"Done: epoch {best['epoch']} is the best{score}. Now: spml recover {out} --out labels.csv")


@app.command(epilog="Example: spml predict runs/photos new/*.jpg --out tags.csv")
def predict(
    run: RunFolder,
    inputs: Annotated[
        list[Path], typer.Argument(help="Images or folders of them; one .npy of features; or one .parquet of either.")
    ],
    out: Annotated[Path, typer.Option(help="File to write: .csv, .parquet or .jsonl.")],
    threshold: Annotated[
        float | None, typer.Option(help="Labels at least this probable are listed; by default 0.5.", min=0, max=1)
    ] = None,
    top: Annotated[int | None, typer.Option(help="At least this many labels are listed; by default 1.", min=0)] = None,
    recover: Annotated[
        bool, typer.Option("--recover", help="Instead, labels and confidences as `spml recover` finds them.")
    ] = False,
    label_column: Annotated[
        str | None, typer.Option(help="Of a .parquet, with --recover: the column of the label known of a row.")
    ] = None,
    ray: Annotated[
        bool, typer.Option("--ray", help="On a Ray cluster: a .parquet in, a folder of .parquet files out.")
    ] = False,
    device: str = "auto",
) -> None:
    """Label new rows with a trained run. Needs neither a GPU nor the training data."""
    from spml.train.finished import unfinished

    if not recover and (said := unfinished(run)):
        typer.echo(f"spml: {said}. These labels are those of its best epoch so far.", err=True)
    if recover and (threshold is not None or top is not None):
        raise InputError("--recover lists the labels that are believed: leave --threshold and --top out")
    options: dict[str, Any] = {
        "threshold": 0.5 if threshold is None else threshold,
        "top": 1 if top is None else top,
        "recover": recover,
        "label_column": label_column,
    }
    if ray:
        from spml.predict.cluster import predict_table

        if len(inputs) != 1:
            raise InputError("--ray labels one .parquet table (or folder of them): give just that")
        count = predict_table(run, inputs[0], out, device=device, **options)
    else:
        from spml.predict.predictor import predict_files

        count = predict_files(run, inputs, out, device=device, progress=True, **options)
    rows = "rows" if inputs[0].suffix in (".npy", ".parquet", ".pq") else "images"
    typer.echo(f"{count} {rows} labelled: {out}")


@app.command(epilog="Example: spml recover runs/photos --out labels.csv")
def recover(
    run: RunFolder,
    out: Annotated[Path, typer.Option(help="File to write.")],
    format: Annotated[str | None, typer.Option(help="csv, parquet, coco, label-studio or fiftyone.")] = None,
    labelled: Annotated[
        Path | None, typer.Option(help="A CSV (name, label) of a few rows with all their labels, to calibrate by.")
    ] = None,
    k: Annotated[
        float | None,
        typer.Option(help="Mean number of labels of a row, if you know it; by default what train was told."),
    ] = None,
) -> None:
    """Hand back the labels that were missing from the training rows, with confidences."""
    from spml.recover import export
    from spml.recover import recover as recover_labels
    from spml.recover.labelled import read_labelled
    from spml.train.finished import open_run, refuse_among_data

    finished = open_run(run)
    refuse_among_data(out, run)
    given = None if labelled is None else read_labelled(labelled, finished)
    recovered = recover_labels(finished, labelled=given, k=k)
    export(recovered, out, format=format)
    for note in recovered.notes:
        typer.echo(note)
    typer.echo(f"{recovered.summary()} {out}")


@app.command(epilog="Example: spml report runs/photos --out report.html")
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs.", metavar="RUN…")],
    out: Annotated[Path, typer.Option(help="HTML file to write.")],
    landscape: Annotated[
        bool, typer.Option("--landscape", help="Of several runs, draw the loss around each network (minutes).")
    ] = False,
) -> None:
    """Write one HTML file with curves, numbers and pictures of one or several runs."""
    from spml.report import loss_landscape, write_report
    from spml.train.finished import open_run, refuse_among_data

    if landscape and len(runs) < 2:
        raise InputError("--landscape compares networks: name at least two runs")
    finished = [open_run(run) for run in runs]
    for run in runs:
        refuse_among_data(out, run)
    write_report(finished, out, landscapes={run.name: loss_landscape(run) for run in finished} if landscape else None)
    typer.echo(f"Report: {out}")


@app.command(epilog="Example: spml methods")
def methods() -> None:
    """List the methods: name, paper, what each needs, what it does."""
    from rich.console import Console
    from rich.table import Table

    from spml.methods import METHODS

    table = Table()
    for column in ("name", "paper", "needs", "what it does"):
        table.add_column(column, no_wrap=column == "name")
    for name, made in sorted(METHODS.items()):
        needs = made.needs
        wants = [
            {"full": "full labels", "negatives": "known negatives"}.get(needs.labels, ""),
            "k" if needs.k else "",
            f"{len(needs.views)} views" if len(needs.views) > 1 else "",
            f"{needs.head} head" if needs.head != "linear" else "",
        ]
        table.add_row(name, made.paper, ", ".join(filter(None, wants)) or "one label a row", made.summary)
    Console().print(table)


@app.command(epilog="Example: spml info runs/photos")
def info(run: RunFolder) -> None:
    """Say what a run is: data, method, settings, best epoch, files."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from spml.train.finished import describe

    table = Table(show_header=False)
    for name, value in describe(run).items():
        table.add_row(name, escape(str(value)))
    Console().print(table)


app.command(epilog=EXAMPLE)(bench)


def _settings(pairs: list[str]) -> dict[str, Any]:
    """name=value pairs; numbers, true and false are read as such."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise InputError(f"--setting {pair} is not of the form name=value")
        if name in settings:
            raise InputError(f"--setting {name} is given twice: once is enough")
        value: Any = text
        if text.lower() in ("true", "false"):
            value = text.lower() == "true"
        else:
            for read in (int, float):
                try:
                    value = read(text)
                    break
                except ValueError:
                    continue
        settings[name] = value
    return settings


INTERRUPTED = 130  # what typer makes of Ctrl-C


def main() -> None:
    """Run the command; bad input is one sentence and exit code 2."""
    code = _run()
    if "torch.distributed" in sys.modules and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from spml.train.distributed import end_process

        end_process(code)
    sys.exit(code)


def _speaks() -> bool:
    """Whether this process is the one of all that torchrun started, or of one, that says things."""
    return os.environ.get("RANK", "0") == "0"


def _say(text: str) -> None:
    if _speaks():
        typer.echo(text)


def _run() -> int:
    """The exit code."""
    try:
        app()
    except SystemExit as end:
        if end.code == INTERRUPTED and _speaks():
            print("Interrupted. The same command goes on where it was.", file=sys.stderr)
        return _fail(end.code) if isinstance(end.code, str) else end.code or 0
    except InputError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{error.filename or 'a file'}: {error.strerror or error}")
    return 0


def _fail(sentence: str) -> int:
    print(f"spml: {sentence}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
