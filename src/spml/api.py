"""The public Python API: train a classifier, load it, predict, embed, recover, report, export and share."""

import difflib
import inspect
import os
import tempfile
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from spml.data.dataset import Dataset
from spml.data.detect import FORMATS, format_options, open_data
from spml.data.stores.decode import FilePath
from spml.errors import InputError, install_command
from spml.labels import Labels
from spml.predict.blocks import InputBlock
from spml.predict.inputs import Inputs, open_inputs
from spml.predict.onnx_export import export_onnx
from spml.predict.predictor import Predictor, open_predictor
from spml.predict.pretrained import TrainingRecord, is_pretrained, load_pretrained, save_pretrained, training_record
from spml.recover import LabelledRows, Recovered
from spml.recover import recover as recover_labels
from spml.recover.labelled import answers_of, read_labelled
from spml.recover.sample import sample_rows, write_sample
from spml.runs.decisions import DECISIONS
from spml.runs.folder import RunFolder, check_output_path, open_run, run_settings
from spml.runs.outputs import check_overwrite
from spml.training.options import TrainOptions
from spml.training.train_data import train_data

Float32 = npt.NDArray[np.float32]


def train(
    data: FilePath | Dataset,
    *,
    out: FilePath,
    method: str = "auto",
    settings: Mapping[str, Any] | None = None,
    model: str | None = None,
    weights: FilePath | None = None,
    head: str | None = None,
    size: int | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    base: str | None = None,
    encoder: str | None = None,
    effort: str = "normal",
    minutes: float | None = None,
    k: float | None = None,
    seed: int = 0,
    device: str = "auto",
    track: str | None = None,
    decisions: FilePath | None = None,
    progress: bool = True,
    **options: Any,
) -> "Run":
    """Train a multi-label classifier from one observed label per example.

    Training can be interrupted; the same call resumes it. Under torchrun, all machines must share the run folder.

    Parameters
    ----------
    data : str, path or Dataset
        A folder with one subfolder per class (images or .txt files), a table (csv, tsv, parquet) of images, texts or
        numbers, a feature matrix (.npy, or sparse .npz), COCO json, a VOC folder, or "scenes" (built in); or a data set
        from `spml.open_data`.
    out : str or path
        Run folder. If it holds an interrupted run, training resumes; if the run is finished, it is loaded.
    method : str
        Training method; `spml methods` lists them.
    settings : mapping, optional
        Settings of the method that differ from its defaults.
    model : str, optional
        Backbone: "lite0", "lite1", "lite2", "small", or any timm model. Default: "lite2" at 320 pixels; on a CPU that
        trains only the whole network (see `effort`), "lite0" at 224 pixels.
    weights : str or path, optional
        A .safetensors file with the weights of `model`, read instead of downloading them.
    head : str, optional
        "linear", "label-wise", "attention" or "cam". Default: chosen by the method.
    size : int, optional
        Image size in pixels. Default: the size given to `spml.open_data`, else the model's own.
    epochs, batch_size : int, optional
        Images: passes over the training data (default: 3,000 steps, at least 10 epochs), and examples per step
        (default: 16).
    learning_rate : float, optional
        Images: peak learning rate. Default: 1e-4.
    base : str, optional
        Features and texts: "auto" (default), "linear" or "trees", the learners that are tried. What is used, and how
        strongly it is regularised, is chosen by cross-validation.
    encoder : str, optional
        Texts: "tfidf" (default), "words", "chars", "words+chars", "wordllama", or a model of sentence-transformers.
    effort : {"quick", "normal", "thorough"}
        Images. A classifier on features of the frozen network is trained first. "thorough" continues from it with the
        whole network and keeps the better one. "normal" does so on a GPU, and on a CPU within `minutes`. "quick" does
        not, and reads every image at one size instead of two. Any of head, epochs, batch_size, learning_rate and
        settings trains the whole network alone.
    minutes : float, optional
        Images: time limit. What remains after the first classifier is used to train the whole network.
    k : float, optional
        Average number of labels per example. Required by some methods; improves `Run.recover`.
    seed : int
    device : str
        "auto", "cpu" or "cuda".
    track : str, optional
        Also log to "tensorboard" or "trackio".
    decisions : str or path, optional
        Database of answers from `spml review` or `spml annotate`, learned as verified labels.
    progress : bool
        Print notes about the data and show a progress bar.
    **options
        Options of `spml.open_data`, such as `kind`, `image_column`, `text_column`, `label_column`, `class_columns`,
        `labels`, `on_bad_image`.

    Returns
    -------
    Run

    Raises
    ------
    InputError
        If an option is invalid, or the data cannot be read.

    Examples
    --------
    >>> import spml, tempfile
    >>> out = tempfile.TemporaryDirectory()
    >>> run = spml.train("scenes", out=out.name, train=60, test=20, model="small", epochs=1, progress=False)
    >>> run.training.method, len(run.classes)
    ('auto', 10)
    """
    _check_options(options)
    if isinstance(data, Dataset) and options:
        raise InputError(f"option {next(iter(options))!r} applies only to a path: pass it to `spml.open_data`")
    notify: Callable[[str], None] = print if progress and os.environ.get("RANK", "0") == "0" else lambda text: None
    chosen = TrainOptions(
        method=method,
        settings=settings or {},
        model=model,
        weights=None if weights is None else _path("weights", weights),
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
        decisions=None if decisions is None else _path("decisions", decisions),
    )
    if not isinstance(data, Dataset):
        _path("data", data)
    source = data if isinstance(data, Dataset) else os.fspath(data)
    train_data(source, _path("out", out), chosen, data_options=options, notify=notify, progress=progress)
    return load(out, device=device)


def _path(name: str, value: Any) -> Path:
    """A path that a caller gave; raises `InputError` for anything else."""
    if not isinstance(value, (str, PathLike)) or not isinstance(os.fspath(value), str):
        raise InputError(f"{name} must be a path, not an object of type {type(value).__name__}")
    return Path(value)


def _check_options(options: Mapping[str, Any]) -> None:
    """Raise `InputError` for an option that is neither one of `train` nor one of any data format."""
    of_data = {"kind", *(name for kind in FORMATS for name in format_options(kind))}
    of_train = [name for name in inspect.signature(train).parameters if name not in ("data", "options")]
    for option in sorted(options.keys() - of_data):
        similar = difflib.get_close_matches(option, [*of_train, *sorted(of_data)], n=1)
        hint = f"; did you mean {similar[0]!r}?" if similar else "."
        raise InputError(
            f"spml.train has no option {option!r}{hint} Options: {', '.join(of_train)}, and those of `spml.open_data`."
        )


def load(path: FilePath, *, device: str = "auto") -> "Run":
    """Load a trained classifier.

    Parameters
    ----------
    path : str or path
        A run folder written by `spml.train` or `spml train`, or a folder written by `Run.save_pretrained`. The training
        data need not be there.
    device : str
        "auto", "cpu" or "cuda".

    Returns
    -------
    Run

    Raises
    ------
    InputError
        If the folder is neither, or the run is unfinished.

    Examples
    --------
    >>> import spml, tempfile
    >>> out, saved = tempfile.TemporaryDirectory(), tempfile.TemporaryDirectory()
    >>> run = spml.train("scenes", out=out.name, train=60, test=20, model="small", epochs=1, progress=False)
    >>> run.save_pretrained(saved.name)
    >>> spml.load(out.name).classes == spml.load(saved.name).classes
    True
    """
    folder = _path("path", path)
    if is_pretrained(folder):
        return Run(*load_pretrained(folder, device))
    run = open_run(folder)
    return Run(open_predictor(folder, device), training_record(run), run)


class Run:
    """A trained classifier, from `spml.train` or `spml.load`.

    Parameters
    ----------
    predictor : Predictor
        The network with its classes and calibration.
    training : TrainingRecord
        How it was trained.
    folder : RunFolder, optional
        The run folder; None for a classifier loaded from `save_pretrained`.

    Attributes
    ----------
    training : TrainingRecord
        Data, rows, method, settings, best epoch and scores.

    Examples
    --------
    >>> import spml, tempfile
    >>> data, out = spml.open_data("scenes", train=60, test=20), tempfile.TemporaryDirectory()
    >>> run = spml.train(data, out=out.name, method="em", model="small", epochs=1, progress=False)
    >>> run.classes[:3]
    ('zero', 'one', 'two')
    >>> images = data.store.batch(data.test)
    >>> run.predict(images).shape, run.embed(images).shape
    ((20, 10), (20, 192))
    >>> labels = run.recover()
    >>> labels.confidence([0]).shape
    (1, 10)
    """

    def __init__(self, predictor: Predictor, training: TrainingRecord, folder: RunFolder | None = None) -> None:
        self.predictor = predictor
        self.training = training
        self.folder = folder

    def __repr__(self) -> str:
        return f"Run({str(self.predictor.folder)!r}: {self.training.method}, {len(self.classes)} classes)"

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the columns of `predict`."""
        return self.predictor.classes

    def predict(self, inputs: Inputs) -> Float32:
        """Predict the probability of every class.

        Parameters
        ----------
        inputs : path, PIL image, array, tensor, or a sequence of these
            Images: paths of image files or folders; PIL images; arrays of shape (H, W, 3), (H, W) or (N, H, W, 3) and
            tensors of shape (3, H, W) or (N, 3, H, W), uint8 in 0..255 or float in 0..1. Images of any size are
            resized as in training; arrays and tensors that already have the network's size are used as they are.
            Texts: one or several strings, or paths of .txt files. Features: one row, a matrix of rows, a pandas
            DataFrame, or the path of a .npy or .npz file. For all: the path of a table, in which features and texts are
            found by the names of their columns.

        Returns
        -------
        ndarray of shape (n, n_classes), float32
            The network's probabilities, as in the output of `spml predict`. Rows do not sum to 1.

        Raises
        ------
        InputError
            If an input cannot be read or does not fit the run.
        """
        return self._each_block(inputs, self.predictor.probabilities, len(self.classes))

    def embed(self, inputs: Inputs) -> Float32:
        """Compute what is classified: pooled backbone features of images, feature rows, encoded texts.

        Parameters
        ----------
        inputs
            As in `predict`.

        Returns
        -------
        ndarray of shape (n, n_features), float32

        Raises
        ------
        InputError
            If an input cannot be read or does not fit the run.
        """
        return self._each_block(inputs, self.predictor.embeddings, self.predictor.spec.features or 0)

    def _each_block(self, inputs: Inputs, compute: Callable[[InputBlock], Float32], width: int) -> Float32:
        parts = [compute(block) for block in open_inputs(inputs, self.predictor.spec).blocks]
        return np.concatenate(parts) if parts else np.zeros((0, width), np.float32)

    def recover(
        self,
        *,
        rows: Literal["train", "all"] = "train",
        labelled: FilePath | LabelledRows | tuple[Labels, npt.ArrayLike] | None = None,
        k: float | None = None,
        prefer: Literal["recall", "balanced", "precision"] = "balanced",
        threshold: float | None = None,
        precision: float | None = None,
        decisions: FilePath | None = None,
    ) -> Recovered:
        """Recover the missing labels of the training data, with a confidence for each.

        Parameters
        ----------
        rows : {"train", "all"}
            The training and validation rows, or also the test rows.
        labelled : path, or (Labels, row numbers), optional
            Some rows with all their labels, which improve the confidences: the filled-in file of `sample`,
            another CSV with the columns name and label, or labels and the rows they belong to.
        k : float, optional
            Average number of labels per example. Default: the value given to `train`, else an estimate.
        prefer : {"balanced", "recall", "precision"}
            "balanced": labels that are more likely present than not, in a cautious reading; "precision": fewer labels,
            of a confidence of at least 0.8; "recall": more labels, by the best expected F1.
        threshold : float, optional
            Confidence from which a label counts as present, instead of `prefer`.
        precision : float, optional
            Recover the most labels whose precision is at least this with 90% confidence. Needs `labelled`.
        decisions : path, optional
            Database of answers. Default: review.db in the run folder, if it exists.

        Returns
        -------
        Recovered

        Raises
        ------
        InputError
            If an argument is invalid, or the run folder is not available.
        """
        run = self._run_folder("recover")
        known = read_labelled(_path("labelled", labelled), run) if isinstance(labelled, (str, PathLike)) else labelled
        answers = answers_of(run, None if decisions is None else _path("decisions", decisions))
        return recover_labels(
            run,
            rows=rows,
            labelled=known,
            k=k,
            prefer=prefer,
            threshold=threshold,
            precision=precision,
            decisions=answers,
        )

    def sample(self, path: FilePath, *, rows: int = 20, seed: int = 0, overwrite: bool = False) -> None:
        """Draw training rows to label fully, and write them as CSV with the columns name, label and weight.

        Complete the column label, with | between labels, keep the weights, and pass the file to `recover`. Twenty rows
        are a good start; a guaranteed precision needs more.

        Parameters
        ----------
        path : str or path
            CSV file to write.
        rows : int
            Number of rows. Half of the chance of a row is equal for all, half grows with the doubt about its labels.
        seed : int
        overwrite : bool
            Whether to replace an existing file.

        Raises
        ------
        InputError
            If there are fewer rows, the file exists or cannot be written, or the run folder is not available.
        """
        run, file = self._run_folder("sample"), _path("path", path)
        check_output_path(file, run.folder)
        check_overwrite(file, overwrite)
        write_sample(sample_rows(run, rows, seed=seed), run, file)

    def train_again(
        self, out: FilePath, *, decisions: FilePath | None = None, progress: bool = True, **changes: Any
    ) -> "Run":
        """Train on the same data with the same settings, and learn from the answers that people gave.

        Parameters
        ----------
        out : str or path
            Folder of the new run.
        decisions : str or path, optional
            Database of answers. Default: review.db in the run folder, which `spml review` writes.
        progress : bool
            Print notes and show a progress bar.
        **changes
            Arguments of `spml.train` that differ from this run's, such as `epochs`.

        Returns
        -------
        Run

        Raises
        ------
        InputError
            If there are no answers, the data is gone, or an argument is invalid.
        """
        run = self._run_folder("train_again")
        answers = _path("decisions", decisions) if decisions is not None else run.folder / DECISIONS
        if not answers.is_file():
            raise InputError(f"{answers}: no such file. Answer some questions with `spml review {run.folder}` first")
        weights = run.record["model"].get("weights", {}).get("source", "")
        if weights.startswith("file ") and "weights" not in changes:
            raise InputError(f"{run.folder} was trained with --weights, a {weights}: pass its path as weights=")
        data = open_data(run.source["path"], **run.source["options"])
        same = {name: value for name, value in run_settings(run).items() if value is not None}
        return train(data, out=out, decisions=answers, progress=progress, **(same | changes))

    def report(self, path: FilePath, *, overwrite: bool = False) -> None:
        """Write an HTML report with curves, numbers and pictures.

        Parameters
        ----------
        path : str or path
            HTML file to write.
        overwrite : bool
            Whether to replace an existing file.

        Raises
        ------
        InputError
            If the file exists or cannot be written, or the run folder is not available.
        """
        from spml.report import write_report

        run, file = self._run_folder("report"), _path("path", path)
        check_output_path(file, run.folder)
        write_report([run], file, overwrite=overwrite)

    def export(self, path: FilePath, *, overwrite: bool = False) -> None:
        """Write an ONNX file that computes calibrated probabilities; needs the extra `export`.

        The file is checked against onnxruntime before it is written. Its input is `images`, uint8 of shape
        (batch, 3, size, size), RGB, already resized; or `features`, float32 of shape (batch, n_features). Its output
        `probabilities` has the confidences of `spml predict --recover`. The metadata hold `classes`, `thresholds`,
        `most_labels` (per row), `image_size` (as JSON) and `spml_version`.

        Parameters
        ----------
        path : str or path
            File to write, ending in .onnx.
        overwrite : bool
            Whether to replace an existing file.

        Raises
        ------
        InputError
            If the extra is not installed, the file name does not end in .onnx, or the file exists or cannot be written.
        """
        file = _path("path", path)
        if file.suffix != ".onnx":
            raise InputError(f"{file}: the file must end in .onnx")
        check_overwrite(file, overwrite)
        export_onnx(self.predictor, file)

    def save_pretrained(self, folder: FilePath) -> None:
        """Write weights, configuration and a model card, in the layout of the Hugging Face Hub.

        `spml.load(folder)` loads them on any machine, without the training data.

        Parameters
        ----------
        folder : str or path
            New or empty folder, or one that an earlier call wrote.

        Raises
        ------
        InputError
            If the folder holds other files, or cannot be written.
        """
        save_pretrained(self.predictor, self.training, _path("folder", folder))

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool = False,
        token: str | None = None,
        commit_message: str = "Upload a classifier trained with spml",
    ) -> str:
        """Upload what `save_pretrained` writes to the Hugging Face Hub; needs the extra `hub`.

        Parameters
        ----------
        repo_id : str
            "user/name". The repository is created if it does not exist.
        private : bool
            Whether a new repository is private.
        token : str, optional
            Default: the token of `hf auth login`.
        commit_message : str

        Returns
        -------
        str
            The address of the commit.

        Raises
        ------
        InputError
            If the extra is not installed, or the Hub refuses the upload.
        """
        try:
            from huggingface_hub import HfApi
            from huggingface_hub.errors import HfHubHTTPError, HFValidationError
        except ImportError:
            raise InputError(f"push_to_hub needs the package huggingface_hub: {install_command('hub')}") from None
        with tempfile.TemporaryDirectory() as name:
            self.save_pretrained(name)
            hub = HfApi(token=token)
            try:
                hub.create_repo(repo_id, private=private, exist_ok=True)
                return str(hub.upload_folder(repo_id=repo_id, folder_path=name, commit_message=commit_message))
            except (HfHubHTTPError, HFValidationError) as error:
                raise InputError(f"{repo_id} was not uploaded: {str(error).splitlines()[0]}") from error

    def _run_folder(self, action: str) -> RunFolder:
        if self.folder is None:
            raise InputError(
                f"{self.predictor.folder} holds a classifier without its training rows: call {action} on the run folder"
            )
        return self.folder
