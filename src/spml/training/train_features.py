"""Training on features and texts: from a data set to a finished run folder, by `fit_features`.

A fit takes seconds to minutes and is not resumed: an interrupted run is trained again from its start. Until the fit has
ended, its folder holds run.json alone.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from spml import __version__
from spml.data.dataset import PARTS, Dataset, truth_closed
from spml.data.stores.features import FeatureStore
from spml.data.stores.images import ImageStore
from spml.data.stores.texts import TextStore
from spml.errors import InputError
from spml.free_memory import free_memory
from spml.labels import Labels
from spml.methods import Method
from spml.methods import method as make_method
from spml.models import Classifier, build_classifier
from spml.models.feature_model import FeatureModel, LinearLearner
from spml.models.frozen import ZOOMS
from spml.models.text_encoders import DEFAULT_ENCODER, TextEncoder, check_encoder, fit_encoder
from spml.runs.files import digest, lock_folder, read_json, write_tensors, write_text
from spml.runs.folder import ENCODER, PREDICTIONS
from spml.runs.schema import RunRecord
from spml.training.device import choose_device
from spml.training.evaluation import selection_score
from spml.training.examples import check_labels
from spml.training.frozen.epr_head import with_epr_head
from spml.training.frozen.pooled_features import features_are_cached, pooled_features, supported_zooms
from spml.training.frozen.regions import image_part, regions_fit_in_memory, with_regions
from spml.training.learners import FeatureFit, fit_features
from spml.training.learners.trees import forests_take_long
from spml.training.network.files import refuse_other_settings
from spml.training.network.finish import write_rows
from spml.training.progress import stage_display


def with_encoded_texts(dataset: Dataset, encoder: str = DEFAULT_ENCODER) -> tuple[Dataset, TextEncoder]:
    """A data set of texts with features in place of the texts, and the encoder, fitted on the training rows.

    Examples
    --------
    >>> from spml.data import Dataset, TextStore
    >>> from spml.labels import Labels
    >>> store, rows = TextStore(["red apple", "green pear", "red pear"]), np.arange(3)
    >>> labels = Labels.from_indices([0, 1, 1], ["apple", "pear"])
    >>> data = Dataset("fruit", store, rows.astype(str), labels, None, rows[:2], rows[:0], rows[2:])
    >>> with_encoded_texts(data, "words")[0].store
    FeatureStore(3 rows of 6 features, sparse)
    """
    store = dataset.store
    if not isinstance(store, TextStore):
        raise InputError(f"{dataset.name}: an encoder applies only to texts")
    fitted = fit_encoder(encoder, store.texts(dataset.train))
    return replace(dataset, store=FeatureStore(fitted.encode(store.texts()))), fitted


def train_features(
    dataset: Dataset,
    folder: Path,
    *,
    method: str = "auto",
    settings: Mapping[str, Any] | None = None,
    base: str = "auto",
    encoder: str | None = None,
    backbone: str | None = None,
    weights: str | Path | None = None,
    zooms: Sequence[float] = ZOOMS,
    k: float | None = None,
    seed: int = 0,
    device: str = "auto",
    notify: Callable[[str], None] = print,
    progress: bool = True,
) -> dict[str, Any]:
    """Train on features, texts or the features of a frozen backbone, and write all that makes a folder a finished run.

    The model is trained on all training rows. Their predictions in the run folder come from cross-fitting: each from
    models that were not trained on that row's label.

    Parameters
    ----------
    dataset : Dataset
        Features, texts or images.
    folder : Path
        The run folder. A finished run with the same settings in it is kept.
    method, settings, base, k, seed, device
        As in `fit_features`.
    encoder : str, optional
        Of texts; see `fit_encoder`.
    backbone : str, optional
        Of images: the network whose features are used; it is not trained.
    weights : str or Path, optional
        A .safetensors file with the weights of `backbone`.
    zooms : sequence of float
        Of images: the features are averaged over these multiples of their size, if the backbone supports them.
    notify : callable
        Receives messages for the user.
    progress : bool
        Show the stage of training.

    Returns
    -------
    dict
        {"score": mean average precision of the cross-fitted predictions on the observed labels, "summary": what was
        chosen}.

    Raises
    ------
    InputError
        If data and settings do not fit, or the folder holds another run.
    """
    texts = isinstance(dataset.store, TextStore)
    encoder = _checked_encoder(encoder, texts)
    labels = dataset.labels.subset(dataset.train)
    chosen_method = make_method(method, **(settings or {}))
    _check_options(chosen_method, labels, settings or {}, base, k)
    network: Classifier | None = None
    regions = backbone is not None and regions_fit_in_memory(len(dataset))
    if backbone is None:
        dataset.store.prepare()
    else:
        assert isinstance(dataset.store, ImageStore)
        size = dataset.store.size
        network = build_classifier(
            backbone, len(dataset.classes), image_size=size, pooling="auto", weights=weights
        ).eval()
        zooms = supported_zooms(network, torch.zeros(1, 3, size, size), zooms)
        if not features_are_cached(
            network, dataset.store, _used_rows(dataset), choose_device(device), zooms=zooms, regions=regions
        ):
            dataset.store.prepare(progress=progress)
    record = _record(dataset, labels, chosen_method, base, k, seed, _inputs(dataset, encoder, backbone, weights, zooms))
    _check_memory(dataset)
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder):
        if _is_finished(folder, record):
            return _result(folder)
        write_text(folder / "run.json", json.dumps(record, indent=2))
        feature_data = dataset
        if network is not None:
            with truth_closed():
                feature_data = with_frozen_features(dataset, network, zooms, regions, device, progress)
            network.set_zooms(zooms)
            network.cpu()
        with stage_display(progress) as show, truth_closed():
            fitted: TextEncoder | None = None
            if encoder is not None:
                show("encoding texts")
                feature_data, fitted = with_encoded_texts(dataset, encoder)
                notify(f"Features: {fitted.description}")
            store = feature_data.tensor_store
            assert isinstance(store, FeatureStore)
            sizes = len(labels), store.dim, labels.num_classes
            if network is None and method == "auto" and base == "auto" and forests_take_long(*sizes):
                notify("Growing forests can take minutes: --base linear does without them, and is faster.")
            answers = dataset.answers
            whole = image_part(store, 0) if regions else store
            training_features = whole.subset(dataset.train)
            fit = fit_features(
                training_features,
                labels if answers is None else answers.given.subset(dataset.train),
                answers=None if answers is None else answers.decided.subset(dataset.train),
                method=method,
                settings=settings,
                base=base,
                k=k,
                normalise=network is None,  # on images it finds too many labels per row, and ranks them worse
                seed=seed,
                device=device,
                progress=show,
            )
            if network is not None and method == "auto" and answers is None:
                show("EPR's head")
                fit = with_epr_head(fit, training_features, labels, k=k, seed=seed, device=device)
            if regions:
                show("regions of images")
                fit = with_regions(fit, store.subset(dataset.train), labels, k=k)
                store = store if fit.model.num_regions else whole
            predictions = _predictions(dataset, store, fit)
        for note in _limits(labels, fit, images=backbone is not None):
            notify(note)
        if network is not None:
            network.replace_head(fit.model)
        _write(folder, record, dataset, fit, network or fit.model, fitted, predictions)
        return _result(folder)


def _check_options(method: Method, labels: Labels, settings: Mapping[str, Any], base: str, k: float | None) -> None:
    """Raise `InputError` if an option is invalid, or the method needs labels that are unknown."""
    check_labels(method, labels)
    if base not in ("auto", "linear", "trees"):
        raise InputError(f"base is {base!r}: it must be auto, linear or trees")
    if k is not None and not 0 < k <= labels.num_classes:
        raise InputError(f"k must be above 0 and at most {labels.num_classes}, the number of classes, not {k}")
    if method.name == "auto" and settings:
        raise InputError(f"on features the method 'auto' has no settings: remove {next(iter(settings))!r}")


def _record(
    dataset: Dataset, labels: Labels, method: Method, base: str, k: float | None, seed: int, inputs: dict[str, Any]
) -> dict[str, Any]:
    """The content of run.json before training."""
    settings = {} if method.name == "auto" else asdict(method.settings)
    return {
        "spml": __version__,
        "method": {"name": method.name, **settings},
        "train": {"seed": seed, "base": base},
        "model": {},
        "classes": list(dataset.classes),
        "data": {"rows": len(labels), "labels": labels.fingerprint(), "source": dataset.fingerprint()},
        "k": k,
        "inputs": inputs,
    }


def _check_memory(dataset: Dataset) -> None:
    """Raise `InputError` if the labels and predictions alone, in float32, do not fit into memory."""
    rows, classes = dataset.labels.shape
    needed, free = 8 * rows * classes, free_memory()
    if needed > free:
        raise InputError(
            f"{dataset.name}: the labels and predictions of {rows:,} rows and {classes:,} classes need "
            f"{needed / 2**30:,.1f} GiB of memory, and {free / 2**30:,.1f} GiB are free: use fewer rows or classes"
        )


def _limits(labels: Labels, fit: FeatureFit, *, images: bool) -> Iterator[str]:
    """Sentences for the user about what limits the fit."""
    rows = labels.counts().positives
    few = [name for name, number in zip(labels.classes, rows, strict=True) if number == 1]
    if few:
        more = f" and {len(few) - 3} more" if len(few) > 3 else ""
        yield f"{', '.join(few[:3])}{more}: only one row has this label, so its predictions cannot be checked"
    linear = [learner for learner in fit.model.learners if isinstance(learner, LinearLearner)]
    if linear and not images and (constant := int(linear[0].deviation.isinf().sum())):
        constant_columns = "all" if constant == fit.model.dim else f"{constant} of {fit.model.dim}"
        nothing = ": nothing can be learned but how frequent the labels are" if constant == fit.model.dim else ""
        yield f"{constant_columns} columns are constant and have no effect{nothing}"


def _checked_encoder(encoder: str | None, texts: bool) -> str | None:
    if not texts:
        if encoder is not None:
            raise InputError(f"--encoder {encoder} applies only to texts, and the data is a table of numbers")
        return None
    encoder = encoder or DEFAULT_ENCODER
    check_encoder(encoder)
    return encoder


def with_frozen_features(
    dataset: Dataset, network: Classifier, zooms: Sequence[float], regions: bool, device: str, progress: bool
) -> Dataset:
    """A data set of images with features of a pretrained network, and of regions, in place of the images."""
    store, rows = dataset.store, _used_rows(dataset)
    assert isinstance(store, ImageStore)
    title = "features" if progress else None
    pooled = pooled_features(network, store, rows, choose_device(device), zooms=zooms, regions=regions, progress=title)
    matrix = np.zeros((len(dataset), pooled.dim), np.float32)
    matrix[rows] = pooled.batch(np.arange(len(rows))).cpu().numpy()
    return replace(dataset, store=FeatureStore(matrix))


def _used_rows(dataset: Dataset) -> npt.NDArray[np.int64]:
    """The rows for training, validation and test."""
    return np.concatenate([getattr(dataset, part) for part in PARTS])


def _inputs(
    dataset: Dataset,
    encoder: str | None,
    backbone: str | None,
    weights: str | Path | None,
    zooms: Sequence[float],
) -> dict[str, Any]:
    """What prediction needs to know about the inputs."""
    if isinstance(dataset.store, ImageStore):
        of_file = {} if weights is None else {"weights": digest(Path(weights))}
        return {"kind": "images", "columns": [], "backbone": backbone, "zooms": list(zooms), **of_file}
    if isinstance(dataset.store, TextStore):
        return {"kind": "texts", "columns": list(filter(None, [dataset.store.column])), "encoder": encoder}
    assert isinstance(dataset.store, FeatureStore)
    return {"kind": "features", "columns": list(dataset.store.columns), "dim": dataset.store.dim}


def _is_finished(folder: Path, record: dict[str, Any]) -> bool:
    """Whether the folder holds this run. An unfinished run with other settings is ignored, and overwritten later."""
    path = folder / "run.json"
    before = read_json(path, RunRecord) if path.exists() else None
    if before is None or not (folder / PREDICTIONS).exists():
        return False
    refuse_other_settings(path, {**record, "model": before["model"]})
    return "files" in before


def _predictions(dataset: Dataset, store: FeatureStore, fit: FeatureFit) -> dict[str, torch.Tensor]:
    """Cross-fitted predictions of the training rows, and the model's predictions of all others; NaN elsewhere."""
    empty = torch.full((len(dataset), len(dataset.classes)), torch.nan)
    tables = {"probabilities": empty, "independent": empty.clone()}
    for table, values in zip(tables.values(), (fit.held_out, fit.independent), strict=True):
        table[torch.from_numpy(dataset.train)] = torch.from_numpy(values)
    others = np.concatenate([dataset.validation, dataset.test])
    if len(others):
        for table, predicted in zip(tables.values(), fit.model.predict(store.subset(others)), strict=True):
            table[torch.from_numpy(others)] = torch.from_numpy(predicted).float()
    return tables


def _write(
    folder: Path,
    record: dict[str, Any],
    dataset: Dataset,
    fit: FeatureFit,
    network: Classifier | FeatureModel,
    encoder: TextEncoder | None,
    predictions: dict[str, torch.Tensor],
) -> None:
    """Write all files; predictions.safetensors, which makes the run a finished one, comes last."""
    labelled = np.unique(dataset.labels.positives()[0])
    labelled = np.intersect1d(labelled, dataset.train)
    score = selection_score(predictions["probabilities"][torch.from_numpy(labelled)], dataset.labels.subset(labelled))
    record = {**record, "model": network.description}
    best = {"score": score if np.isfinite(score) else None, "epoch": 0, "weights": "raw"}
    lines = [{"kind": "candidate", "step": step, **asdict(learner)} for step, learner in enumerate(fit.candidates)]
    lines.append({"kind": "end", "step": len(lines), "summary": fit.summary, "log_likelihood": fit.log_likelihood})
    write_text(folder / "log.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    if encoder is not None:
        write_tensors(folder / ENCODER, encoder.tensors(), encoder.record)
    write_text(folder / "run.json", json.dumps(record, indent=2))
    write_tensors(folder / "best.safetensors", network.state_dict(), {**record, "best": best})
    write_rows(folder, dataset, predictions)


def _result(folder: Path) -> dict[str, Any]:
    from spml.runs.folder import open_run

    run = open_run(folder)
    return {"score": run.best["score"], "summary": run.short_choice}
