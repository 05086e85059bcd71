"""Soft labels from probes: cross-fitted, calibrated, saved with the run, and only for pretrained backbones."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from spml.data import ImageStore
from spml.data.stores.features import FeatureStore
from spml.labels import Labels
from spml.losses.annotator import annotator_choice
from spml.losses.terms import entropy
from spml.methods import Batch, Clock, Problem, method
from spml.methods.interface import ENOUGH_STEPS, Model
from spml.models import Outputs, build_classifier
from spml.training.examples import Examples
from spml.training.frozen import soft_labels as module
from spml.training.frozen.pooled_features import pooled_features
from spml.training.frozen.soft_labels import probe_features, supports_probes
from spml.training.learners import fit_features
from spml.training.network.trainer import Trainer
from spml.training.run_experiment import default_head
from spml.training.settings import TrainSettings

CLASSES = ("a", "b", "c", "d", "e")


def some_rows(rows: int = 240, seed: int = 0) -> tuple[np.ndarray, np.ndarray, Labels]:
    """Features that show which of five labels are present, the truth, and one observed label per row."""
    draw = np.random.default_rng(seed)
    truth = draw.random((rows, 5)) < 0.3
    truth[np.arange(rows), draw.integers(0, 5, rows)] = True
    features = truth @ draw.normal(0, 2, (5, 24)) + draw.normal(0, 0.5, (rows, 24))
    observed = np.array([draw.choice(np.flatnonzero(row)) for row in truth])
    return features.astype(np.float32), truth, Labels.from_indices(observed, CLASSES)


def test_soft_labels_find_unobserved_labels() -> None:
    features, truth, labels = some_rows(1000)
    soft_labels = probe_features(FeatureStore(features), labels, progress=False).confidences
    known = labels.dense()
    assert (soft_labels[known > 0] == 1).all()
    present, absent = soft_labels[(known == 0) & truth], soft_labels[(known == 0) & ~truth]
    assert present.mean() > 0.5
    assert absent.mean() < 0.1
    assert abs(soft_labels.sum(1).mean() - truth.sum(1).mean()) < 0.5  # k, which was not given


def test_rows_are_scored_by_probes_trained_without_them() -> None:
    draw = np.random.default_rng(0)
    labels = Labels.from_indices(draw.integers(0, 5, 100), CLASSES)
    features = draw.normal(size=(100, 60)).astype(np.float32)  # unrelated to the labels, but easy to learn by heart
    fit = fit_features(FeatureStore(features), labels, base="linear")
    assert (fit.held_out.argmax(1) == labels.single()).mean() < 0.35


def test_entropy_weight_is_annealed_for_networks() -> None:
    labels = Labels.from_indices(np.arange(6) % 5, CLASSES)
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    known, rows = torch.from_numpy(labels.dense()), torch.arange(6)

    def value(features: bool, epoch: int) -> torch.Tensor:
        chosen = method("annotator-em")
        chosen.prepare(Problem(labels, features=features))
        return chosen.objective(logits, known, rows, Clock(epoch, 5))

    choice = annotator_choice(logits, known).sum(1).mean()
    doubt = value(True, 1) - choice
    torch.testing.assert_close(doubt, -0.2 * torch.where(known == 0, entropy(logits), 0.0).sum(1).mean())
    torch.testing.assert_close(value(True, 5), value(True, 1))
    for epoch, share in ((1, 1.0), (2, 0.75), (5, 0.0)):
        torch.testing.assert_close(value(False, epoch), choice + share * doubt)


@pytest.mark.parametrize("head", ["linear", "cam"])
def test_network_starts_from_the_probe(head: str) -> None:
    features, truth, labels = some_rows(1000)
    result = probe_features(FeatureStore(features), labels, progress=False)
    soft_labels = torch.sigmoid(torch.from_numpy(features) @ result.weight.T + result.bias).numpy()
    assert soft_labels[truth].mean() > 0.5
    assert soft_labels[~truth].mean() < 0.1
    classifier = build_classifier("small", 5, head, image_size=32)
    weight, bias = torch.randn(5, classifier.features(torch.zeros(1, 3, 32, 32)).shape[1]), torch.randn(5)
    assert classifier.head.start_from_linear(weight, bias)
    images = torch.rand(3, 3, 32, 32)
    torch.testing.assert_close(
        classifier(images).logits, classifier.features(images) @ weight.T + bias, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("head", ["label-wise", "attention"])
def test_other_heads_start_from_class_frequencies(head: str) -> None:
    classifier = build_classifier("small", 5, head, image_size=32, width=16).eval()
    weight, bias = torch.randn(5, classifier.features(torch.zeros(1, 3, 32, 32)).shape[1]), torch.randn(5)
    assert not classifier.head.start_from_linear(weight, bias)
    assert classifier.head.start_from_frequencies(torch.tensor([0.01, 0.1, 0.3, 0.02, 0.0]))
    probabilities = torch.sigmoid(classifier.head.bias)
    torch.testing.assert_close(probabilities, torch.tensor([0.01, 0.1, 0.3, 0.02, 1e-4]))
    assert not build_classifier("small", 5, "linear", image_size=32).head.start_from_frequencies(probabilities)


def test_known_labels_are_kept() -> None:
    features, truth, labels = some_rows()
    table = labels.dense().copy()
    table[:20] = np.where(truth[:20], 1, -1)
    soft_labels = probe_features(FeatureStore(features), Labels.from_matrix(table, CLASSES), progress=False).confidences
    assert (soft_labels[:20] == truth[:20]).all()


def test_which_classifiers_and_labels_support_probes() -> None:
    _, _, labels = some_rows()
    classifier = build_classifier("small", 5, image_size=32)
    assert not supports_probes(classifier, labels)  # random weights
    classifier.description["weights"] = {"source": "ImageNet"}
    assert supports_probes(classifier, labels)
    assert not supports_probes(torch.nn.Linear(3, 5), labels)
    assert not supports_probes(classifier, labels.subset(np.arange(20)))
    pairs = np.zeros((240, 5), np.int8)
    pairs[:, :2] = 1
    assert not supports_probes(classifier, Labels.from_matrix(pairs, CLASSES))  # no row has a single positive


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(1).mean()


def test_loss_of_auto_with_and_without_soft_labels() -> None:
    _, _, labels = some_rows(8)
    weak, strong, averaged = torch.randn(3, 8, 5)
    rows, given = torch.arange(8), torch.from_numpy(labels.dense())
    plain, probed, short = (method("auto") for _ in range(3))
    plain.prepare(Problem(labels, soft_labels=False))
    probed.prepare(Problem(labels, soft_labels=True, steps=ENOUGH_STEPS))
    short.prepare(Problem(labels, soft_labels=True, steps=ENOUGH_STEPS - 1))
    soft_labels = torch.where(given > 0, 1.0, torch.rand(8, 5).half().float())
    probed.receive_soft_labels(soft_labels)
    short.receive_soft_labels(soft_labels)

    def batch(views: tuple[torch.Tensor, ...], teacher: Model | None = None) -> Batch:
        return Batch(rows, given, views, averaged=teacher)

    early, late = Clock(1, 10), Clock(10, 10)
    one = plain.loss(batch((weak,)), Outputs, late)
    torch.testing.assert_close(one, plain.objective(weak, given, rows, late))
    both = batch((weak, strong), lambda _: Outputs(averaged))
    by_soft_labels = cross_entropy(weak, soft_labels) + cross_entropy(strong, soft_labels)
    mixed = torch.where(given > 0, 1.0, (soft_labels + torch.sigmoid(averaged)) / 2)
    torch.testing.assert_close(probed.loss(both, Outputs, early), by_soft_labels)
    torch.testing.assert_close(
        probed.loss(both, Outputs, late), cross_entropy(weak, soft_labels) + cross_entropy(strong, mixed)
    )
    torch.testing.assert_close(probed.loss(batch((weak, strong)), Outputs, late), by_soft_labels)  # nothing is averaged
    torch.testing.assert_close(short.loss(batch((weak,)), Outputs, late), cross_entropy(weak, soft_labels))
    assert (short.views, short.is_objective) == (("weak",), False)
    assert (plain.views, plain.is_objective) == (("weak",), True)
    assert (probed.views, probed.is_objective) == (("weak", "strong"), False)
    assert not plain.state_dict()
    assert list(probed.state_dict()) == ["memory.values"]


def test_features_at_two_sizes_are_averaged() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 32, 32), dtype=np.uint8)
    store, rows = ImageStore.from_array(pixels), np.arange(5)
    classifier = build_classifier("small", 5, image_size=32)
    found = pooled_features(classifier, store, rows, "cpu", zooms=(1.0, 1.5), batch_size=2)
    images = torch.from_numpy(pixels)
    larger = F.interpolate(images.float(), size=(48, 48), mode="bilinear", antialias=True) / 255
    with torch.no_grad():
        wanted = (classifier.eval().features(images) + classifier.features(larger)) / 2
    torch.testing.assert_close(found.batch(rows), wanted, rtol=1e-4, atol=1e-4)


def test_backbone_with_one_image_size() -> None:
    class OneSize(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            assert images.shape[-1] == 32, "Input width (48) doesn't match model (32)."
            return images.mean((2, 3))

    store = ImageStore.from_array(np.random.default_rng(0).integers(0, 256, (5, 3, 32, 32), dtype=np.uint8))
    classifier = build_classifier(OneSize(), 5, image_size=32)
    found = pooled_features(classifier, store, np.arange(5), "cpu", zooms=(1.0, 1.5))
    torch.testing.assert_close(found.batch(np.arange(5)), classifier.features(store.batch(np.arange(5))))


@pytest.mark.parametrize(
    ("name", "changed", "head"),
    [
        ("auto", {}, "attention"),
        ("auto", {"rows": 1000}, "linear"),  # too few steps
        ("auto", {"classes": 5000}, "linear"),
        ("auto", {"backbone": "small-nf"}, "linear"),
        ("em", {}, "linear"),
        ("lac", {}, "label-wise"),
    ],
)
def test_default_head(name: str, changed: dict[str, Any], head: str) -> None:
    usual = {"backbone": "lite0", "classes": 20, "rows": 4574, "epochs": 10, "batch_size": 16}
    assert default_head(method(name), **{**usual, **changed}) == head


def test_probes_are_trained_once_per_run(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 256, (48, 3, 32, 32), dtype=np.uint8)
    labels = Labels.from_indices(draw.integers(0, 5, 48), CLASSES)
    probed = []
    real = module.probe_features
    monkeypatch.setattr(module, "probe_features", lambda *args, **options: probed.append(1) or real(*args, **options))

    def run(epochs: int, folder: str) -> Trainer:
        torch.manual_seed(0)
        classifier = build_classifier("small", 5, image_size=32)
        classifier.description["weights"] = {"source": "ImageNet"}
        examples = Examples(ImageStore.from_array(pixels), np.arange(48), labels)
        settings = TrainSettings(epochs=epochs, batch_size=16, averaging=0.9)
        trainer = Trainer(
            tmp_path / folder, classifier, method("auto"), examples, None, settings, device="cpu", progress=False
        )
        return trainer

    whole = run(2, "whole")
    whole.fit()
    assert len(probed) == 1
    interrupted = run(2, "interrupted")
    interrupted._interrupted.set()
    with pytest.raises(KeyboardInterrupt):
        interrupted.fit()
    assert len(probed) == 2
    resumed = run(2, "interrupted")
    resumed.fit()
    assert len(probed) == 2  # not again
    for a, b in zip(whole.classifier.parameters(), resumed.classifier.parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(whole.method.memory.values, resumed.method.memory.values)


def test_head_from_linear_init_is_kept(tmp_path) -> None:
    draw = np.random.default_rng(0)
    labels = Labels.from_indices(draw.integers(0, 5, 48), CLASSES)
    store = ImageStore.from_array(draw.integers(0, 256, (48, 3, 32, 32), dtype=np.uint8))
    classifier = build_classifier("small", 5, image_size=32)
    classifier.description["weights"] = {"source": "ImageNet"}
    before = classifier.head.linear.weight.detach().clone()
    examples = Examples(store, np.arange(48), labels)
    run = Trainer(tmp_path, classifier, method("auto"), examples, start={}, device="cpu", progress=False)
    run._start_from_probes()
    assert torch.equal(run.classifier.head.linear.weight, before)
    assert run.method.memory.values.any()
