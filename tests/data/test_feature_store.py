"""Feature stores of every kind of matrix, errors for invalid values, and the classifier on features."""

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
import torch.nn.functional as F
from torch import Tensor

from spml.data import FeatureStore
from spml.data.stores import features as module
from spml.errors import InputError
from spml.labels import Labels
from spml.methods import method
from spml.models.feature_classifier import FeatureClassifier, feature_classifier_from_description, merge_heads
from spml.train.examples import Examples
from spml.train.settings import TrainSettings
from spml.train.trainer import Trainer

ROWS = ([3, 0, 3], np.array([5]), torch.tensor([1, 2]), range(6), [])


def matrix(dtype: object = np.float32) -> np.ndarray:
    values = np.random.default_rng(0).normal(size=(6, 4)).astype(dtype)
    values[2, :3] = 0
    return values


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int16, np.bool_])
@pytest.mark.parametrize("kind", ["array", "fortran", "file", "memmap", "csr", "coo", "tensor", "list"])
def test_batches(tmp_path, dtype, kind):
    values = matrix(dtype)
    path = tmp_path / "x.npy"
    np.save(path, values)
    wide = values.astype(np.float32) if dtype == np.float16 else values  # scipy has no sparse float16
    source = {
        "array": lambda: values,
        "fortran": lambda: np.asfortranarray(values),
        "file": lambda: path,
        "memmap": lambda: np.load(path, mmap_mode="r"),
        "csr": lambda: scipy.sparse.csr_matrix(wide),
        "coo": lambda: scipy.sparse.coo_array(wide),
        "tensor": lambda: torch.from_numpy(values),
        "list": lambda: values.tolist(),
    }[kind]()
    store = FeatureStore(source)
    assert (len(store), store.dim) == (6, 4)
    assert store.nbytes > 0
    store.prepare()
    for rows in ROWS:
        batch = store.batch(rows, pin=True)
        assert batch.dtype == torch.float32
        assert np.array_equal(batch.numpy(), values[np.asarray(rows, dtype=int)].astype(np.float32))
    assert store.good_rows.tolist() == list(range(6))


def test_bfloat16_tensor():
    values = torch.randn(5, 3).bfloat16()
    assert torch.equal(FeatureStore(values).batch([4, 1]), values[[4, 1]].float())


def test_arrays_and_files_are_not_copied(tmp_path):
    values = matrix()
    store = FeatureStore(values)
    values[0, 0] = 7
    assert store.batch([0])[0, 0] == 7
    path = tmp_path / "x.npy"
    np.save(path, values)
    assert isinstance(FeatureStore(path)._array, np.memmap)


def test_changing_a_batch_does_not_change_the_store():
    values = matrix()
    for source in (values.copy(), torch.from_numpy(values.copy()), scipy.sparse.csr_matrix(values)):
        store = FeatureStore(source)
        store.batch(range(6)).zero_()
        assert np.array_equal(store.batch(range(6)).numpy(), values)


@pytest.mark.parametrize("kind", ["array", "file", "csr", "tensor"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_error_locates_the_first_value_that_is_not_finite(tmp_path, monkeypatch, kind, value):
    monkeypatch.setattr(module, "_BLOCK", 8)  # two rows at a time
    values = matrix()
    values[3, 2] = values[3, 3] = values[5, 0] = value
    np.save(tmp_path / "x.npy", values)
    source = {
        "array": values,
        "file": tmp_path / "x.npy",
        "csr": scipy.sparse.csr_matrix(values),
        "tensor": torch.from_numpy(values),
    }[kind]
    with pytest.raises(InputError, match=rf"row 3, column 2 is {value} "):
        FeatureStore(source).check_finite()


def test_finite_batch_reports_the_row_of_the_matrix(tmp_path):
    values = matrix()
    values[3, 2] = np.nan
    np.save(tmp_path / "x.npy", values)
    store = FeatureStore(tmp_path / "x.npy")
    assert np.array_equal(store.finite_batch(np.array([4, 1])).numpy(), values[[4, 1]])
    assert store.finite_batch(np.array([], np.int64)).shape == (0, 4)
    with pytest.raises(InputError, match=r"x\.npy: row 3, column 2 is nan "):
        store.finite_batch(np.array([4, 3]))


@pytest.mark.parametrize("wrap", [np.asarray, scipy.sparse.csr_matrix, torch.from_numpy])
def test_values_too_large_for_float32_raise(wrap):
    values = matrix(np.float64)
    values[4, 1] = 1e300
    with pytest.raises(InputError, match=r"row 4, column 1 is inf as float32"):
        FeatureStore(wrap(values)).prepare()


@pytest.mark.parametrize(
    ("values", "word"),
    [
        (np.zeros(4), "must be a matrix"),
        (np.zeros((2, 3, 4)), "must be a matrix"),
        (np.zeros((0, 4)), "the matrix has no rows"),
        (np.zeros((4, 0)), "the matrix has no features"),
        (np.zeros((2, 2), complex), "complex128"),
        (np.array([["a", "b"]]), "real numbers"),
        (np.array([[1, None]], dtype=object), "object"),
        (torch.zeros(2, 2, dtype=torch.complex64), "complex64"),
    ],
)
def test_invalid_matrices_raise(values, word):
    with pytest.raises(InputError, match=word):
        FeatureStore(values)


def test_invalid_files_raise(tmp_path):
    with pytest.raises(InputError, match=r"gone\.npy: there is no such file"):
        FeatureStore(tmp_path / "gone.npy")
    (tmp_path / "text.npy").write_text("1,2,3")
    with pytest.raises(InputError, match=r"text\.npy: this is not a \.npy file"):
        FeatureStore(tmp_path / "text.npy")
    np.save(tmp_path / "objects.npy", np.array([[{}]]), allow_pickle=True)
    with pytest.raises(InputError, match=r"objects\.npy"):
        FeatureStore(tmp_path / "objects.npy")
    np.savez(tmp_path / "many.npz", a=np.zeros((2, 2)))
    with pytest.raises(InputError, match="several arrays"):
        FeatureStore(tmp_path / "many.npz")
    np.save(tmp_path / "number.npy", np.float32(3))
    with pytest.raises(InputError, match=r"number\.npy: features must be a matrix, not of shape \(\)"):
        FeatureStore(tmp_path / "number.npy")
    np.save(tmp_path / "cut.npy", np.zeros((100, 100)))
    with (tmp_path / "cut.npy").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(InputError, match=r"cut\.npy"):
        FeatureStore(tmp_path / "cut.npy")


@pytest.mark.parametrize("row", [6, -1])
def test_row_out_of_range_raises(row):
    for source in (matrix(), torch.from_numpy(matrix()), scipy.sparse.csr_matrix(matrix())):
        with pytest.raises(InputError, match=f"row {row} is out of range"):
            FeatureStore(source).batch([row])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_missing_cuda_device_raises():
    with pytest.raises(InputError, match="'cuda'"):
        FeatureStore(matrix()).to_device("cuda")


@pytest.mark.parametrize("kind", ["half", "double", "csr", "tensor"])
def test_to_device(monkeypatch, kind):
    """On CUDA if available; otherwise "meta" shows the type."""
    monkeypatch.setattr(module, "_BLOCK", 8)
    device = "cuda" if torch.cuda.is_available() else "meta"
    values = matrix(np.float16).astype(np.float32)
    source = {
        "half": values.astype(np.float16),
        "double": values.astype(np.float64),
        "csr": scipy.sparse.csr_matrix(values),
        "tensor": torch.from_numpy(values).half(),
    }[kind]
    store = FeatureStore(source)
    assert store.to_device(device)
    assert store.nbytes == 24 * (2 if kind in ("half", "tensor") else 4)
    for batch in (store.batch([3, 1]), store.batch(torch.tensor([3, 1], device=device))):
        assert batch.device.type == device
        assert batch.dtype == torch.float32
        if device == "cuda":
            assert np.array_equal(batch.cpu().numpy(), values[[3, 1]])


def test_to_device_cpu_reports_whether_features_are_in_memory(tmp_path):
    np.save(tmp_path / "x.npy", matrix())
    assert FeatureStore(matrix()).to_device("cpu")
    assert FeatureStore(torch.from_numpy(matrix())).to_device("cpu")
    assert not FeatureStore(tmp_path / "x.npy").to_device("cpu")


@pytest.mark.parametrize("rows", [200, 2000])
@pytest.mark.parametrize("mean", [0.0, 1000.0])
def test_feature_classifier_normalises_its_inputs(rows: int, mean: float) -> None:
    torch.manual_seed(0)
    features = (mean + 2 * torch.randn(rows, 12)).float()
    features[:, 3] = 5.0  # a constant column is only shifted
    classifier = FeatureClassifier(12, 4)
    classifier.measure(features)
    deviation, shift = torch.std_mean(features.double(), 0, correction=0)
    deviation[3] = 1.0
    weight, bias = classifier.linear.weight.double(), classifier.linear.bias.double()
    wanted = ((features.double() - shift) / deviation) @ weight.T + bias
    for autocast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = classifier(features).logits
        torch.testing.assert_close(logits.double(), wanted, rtol=0, atol=2e-6 * (1 + mean))


def test_ensemble_of_heads_is_merged_into_their_average() -> None:
    generator = torch.Generator().manual_seed(0)
    direction, centre = torch.randn(2, 3, 8, generator=generator), torch.randn(8, generator=generator)
    weight, bias = direction * torch.tensor([0.1, 5.0])[:, None, None], torch.randn(2, 3, generator=generator)
    merged, shift = merge_heads(weight, bias, (2 / 3, 1 / 3), centre)
    unit = F.normalize(direction, dim=-1)
    wanted = (2 * unit[0] + unit[1]) / 3 * weight[1].norm(dim=-1, keepdim=True)
    torch.testing.assert_close(merged, wanted)  # however small the logits of one are
    torch.testing.assert_close(merged @ centre + shift, weight[1] @ centre + bias[1])
    alike, same = merge_heads(weight[[1, 1]], bias[[1, 1]], (2 / 3, 1 / 3), centre)
    torch.testing.assert_close(alike, weight[1])
    torch.testing.assert_close(same, bias[1])
    weight[:, 1] = 0.0
    assert torch.isfinite(torch.cat([part.flatten() for part in merge_heads(weight, bias, (0.5, 0.5))])).all()


def test_merging_untrained_heads_changes_nothing() -> None:
    torch.manual_seed(0)
    features = torch.randn(30, 12)
    classifier = FeatureClassifier(12, 4, (2 / 3, 1 / 3))
    classifier.measure(features)
    beside = classifier(features).logits.unflatten(-1, (2, 4))
    for head in (0, 1):
        alone = FeatureClassifier(12, 4)
        rows = slice(4 * head, 4 * head + 4)
        parts = {"linear.weight": classifier.linear.weight[rows], "linear.bias": classifier.linear.bias[rows]}
        alone.load_state_dict(parts | {"mean": classifier.mean, "deviation": classifier.deviation})
        torch.testing.assert_close(beside[:, head], alone(features).logits)
    again = feature_classifier_from_description(json.loads(json.dumps(classifier.description)))
    again.load_state_dict(classifier.state_dict())
    one = again.eval()(features).logits
    assert one.shape == (30, 4)
    unit = [(beside[:, head] - beside[:, head].mean(0)) / norm for head, norm in enumerate(norms(classifier))]
    longest = torch.stack(norms(classifier)).amax(0)
    torch.testing.assert_close(one - one.mean(0), (2 * unit[0] + unit[1]) / 3 * longest)
    many = features.repeat(100, 1)
    torch.testing.assert_close(again(many).logits[:30], one, atol=1e-5, rtol=1e-4)


def norms(classifier: FeatureClassifier) -> list[Tensor]:
    return [weight.norm(dim=-1) for weight in classifier.linear.weight.detach().chunk(2)]


def test_biases_and_weights_learn_at_the_same_pace(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    features = draw.normal(size=(400, 400)).astype(np.float32)
    shown = np.where(features[:, 0] > 1, 1, np.where(features[:, 1] > 0, 2, 0))  # label 3 is never named
    training = Examples(FeatureStore(features), np.arange(400), Labels.from_indices(shown, list("abcd")))
    classifier = FeatureClassifier(400, 4)
    settings = TrainSettings(epochs=4, batch_size=8, learning_rate=1e-3)
    Trainer(tmp_path, classifier, method("an"), training, None, settings, device="cpu", progress=False).fit()
    probability = torch.sigmoid(classifier.eval()(torch.zeros(1, 400)).logits)[0]
    assert probability[3] < 0.15, probability
    assert (probability[:3] > probability[3]).all()


def test_fingerprint_depends_on_the_numbers_not_on_how_they_are_stored(tmp_path):
    values = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float16)
    before = FeatureStore(values).fingerprint()
    np.save(tmp_path / "x.npy", values.astype(np.float64))
    on_device = FeatureStore(torch.from_numpy(values))
    on_device.to_device("cpu")
    for other in (values.astype(np.float32), tmp_path / "x.npy", scipy.sparse.csr_matrix(values.astype(np.float32))):
        assert FeatureStore(other).fingerprint() == before
    assert on_device.fingerprint() == before
    assert FeatureStore(values[::-1]).fingerprint() != before
    assert FeatureStore(values.reshape(3, 7)).fingerprint() != before
    values[6, 2] += 1
    assert FeatureStore(values).fingerprint() != before
