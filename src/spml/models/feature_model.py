"""A trained model over feature rows: linear learners and forests, their combination, and calibrated probabilities.

Every learner gives each class a score. The evidence for class c in a row is e_c = Σ wₘ·score_mc, where the scores of
learners that compare classes with each other (softmax, votes) are centred: their mean over the classes is subtracted.
It may be normalised to log-probabilities of the classes, so that a class is less likely to be present if other classes
have strong evidence. A linear correction, learned from people's answers, may be added to it. Label c is then present
with probability p_c = σ(a·e_c + b_c), and with probability p_c / (1 − Π(1 − p)) in a row that has at least one label.
Slope a and offsets b come from the annotator's likelihood (`spml.calibration`).

If a row holds the features of an image and of its regions, e_c is the mean of the evidence in the whole image and of
the strongest evidence in a region.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spml.errors import InputError
from spml.models.heads import Outputs

Float64 = npt.NDArray[np.float64]

_BLOCK = 2**23  # numbers in memory at a time


@runtime_checkable
class FeatureSource(Protocol):
    """Rows of features that are read in blocks, such as a `FeatureStore`."""

    dim: int

    def __len__(self) -> int: ...
    def block(self, rows: npt.NDArray[np.int64]) -> Any: ...


class LinearLearner(nn.Module):
    """Scores W·(x − mean)/deviation + b.

    Parameters
    ----------
    weight : Tensor of shape (n_classes, n_features)
        On standardised features.
    bias : Tensor of shape (n_classes,)
    mean, deviation : Tensor of shape (n_features,)
    """

    kind = "linear"
    weight: Tensor
    bias: Tensor
    mean: Tensor
    deviation: Tensor

    def __init__(self, weight: Tensor, bias: Tensor, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        for name, value in (("weight", weight), ("bias", bias), ("mean", mean), ("deviation", deviation)):
            self.register_buffer(name, value)

    @classmethod
    def empty(cls, dim: int, classes: int) -> LinearLearner:
        return cls(torch.zeros(classes, dim), torch.zeros(classes), torch.zeros(dim).double(), torch.ones(dim).double())

    @property
    def description(self) -> dict[str, Any]:
        return {"kind": self.kind}

    def check(self, dim: int) -> None:
        """Raise ValueError if numbers that were read from a file cannot be those of a trained learner."""
        if not bool((self.deviation > 0).all()):
            raise ValueError("a standard deviation is not above 0")

    def forward(self, features: Tensor) -> Tensor:
        features = (features - self.mean.to(features.dtype)) / self.deviation.to(features.dtype)
        return F.linear(features, self.weight.to(features.dtype), self.bias.to(features.dtype))

    def sparse_scores(self, rows: Any) -> Float64:
        """Scores of the rows of a scipy CSR matrix."""
        weight, bias = (part.cpu().numpy() for part in self.unscaled())
        return np.asarray(rows @ weight.T + bias, np.float64)

    def unscaled(self) -> tuple[Tensor, Tensor]:
        """Weight and bias on features that are not standardised."""
        weight = self.weight.double() / self.deviation.double()
        return weight, self.bias.double() - weight @ self.mean.double()


class Forest(nn.Module):
    """A bagged ensemble of decision trees as plain arrays: the mean of the class shares in the leaves.

    A row moves from node i to `branches[i, 0]` if its feature `feature[i]` is at most `threshold[i]`, otherwise to
    `branches[i, 1]`. The children of a leaf are the leaf itself, so that all rows can take `depth` steps. A leaf holds
    only its classes, as pairs of class and share, padded with shares of 0.

    Parameters
    ----------
    roots : int Tensor of shape (n_trees,)
    branches : int Tensor of shape (n_nodes, 2)
    feature : int Tensor of shape (n_nodes,)
    threshold : Tensor of shape (n_nodes,)
    leaf : int Tensor of shape (n_nodes,)
        Number of the leaf; 0 for inner nodes.
    leaf_class : int Tensor of shape (n_leaves, m)
    leaf_share : Tensor of shape (n_leaves, m)
    depth : int
    classes : int
    """

    kind = "forest"
    roots: Tensor
    branches: Tensor
    feature: Tensor
    threshold: Tensor
    leaf: Tensor
    leaf_class: Tensor
    leaf_share: Tensor

    def __init__(self, arrays: Mapping[str, Tensor], depth: int, classes: int) -> None:
        super().__init__()
        for name in ("roots", "branches", "feature", "threshold", "leaf", "leaf_class", "leaf_share"):
            self.register_buffer(name, arrays[name])
        self.depth, self.classes = depth, classes

    @classmethod
    def empty(cls, classes: int, trees: int, nodes: int, leaves: int, width: int, depth: int) -> Forest:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.int32)

        arrays = {"roots": zeros(trees), "branches": zeros(nodes, 2), "feature": zeros(nodes), "leaf": zeros(nodes)}
        arrays |= {"threshold": torch.zeros(nodes), "leaf_class": zeros(leaves, width)}
        return cls(arrays | {"leaf_share": torch.zeros(leaves, width)}, depth, classes)

    @property
    def description(self) -> dict[str, Any]:
        leaves, width = self.leaf_class.shape
        sizes = {"trees": len(self.roots), "nodes": len(self.feature), "leaves": leaves, "width": width}
        return {"kind": self.kind, **sizes, "depth": self.depth}

    def check(self, dim: int) -> None:
        """Raise ValueError if numbers that were read from a file cannot be those of a trained learner."""
        nodes, leaves = len(self.feature), len(self.leaf_class)
        limits = {"roots": nodes, "branches": nodes, "feature": dim, "leaf": leaves, "leaf_class": self.classes}
        for name, limit in limits.items():
            numbers = getattr(self, name)
            if numbers.numel() and not 0 <= int(numbers.min()) <= int(numbers.max()) < limit:
                raise ValueError(f"{name} has numbers outside of 0 to {limit - 1}")
        if not 0 <= self.depth <= nodes or not bool(((self.leaf_share >= 0) & (self.leaf_share <= 1)).all()):
            raise ValueError("the depth or the shares in the leaves are impossible")

    def votes(self, features: Tensor, feature: Tensor | None = None) -> Tensor:
        """The mean class shares, (B, L), in the precision of the features; they are compared as float32.

        `feature` gives the column that every node compares, if the columns are not those of training.
        """
        values = features.float()
        node = self.roots.long().expand(len(values), -1)
        feature = (self.feature if feature is None else feature).long()
        threshold, branches = self.threshold, self.branches.long()
        for _ in range(self.depth):
            right = values.gather(1, feature[node]) > threshold[node]
            node = branches[node].gather(2, right.long()[..., None])[..., 0]
        leaf = self.leaf.long()[node]
        shares = self.leaf_share.to(features.dtype)[leaf].flatten(1)
        totals = torch.zeros(len(values), self.classes, dtype=features.dtype, device=features.device)
        return totals.scatter_add(1, self.leaf_class.long()[leaf].flatten(1), shares) / len(self.roots)

    def forward(self, features: Tensor) -> Tensor:
        return log_votes(self.votes(features))

    def sparse_scores(self, rows: Any) -> Float64:
        """Scores of the rows of a scipy CSR matrix."""
        columns, column_of_node = torch.unique(self.feature, return_inverse=True)
        dense = torch.from_numpy(rows[:, columns.cpu().numpy()].toarray()).double()
        return _array(log_votes(self.votes(dense, column_of_node)))


def log_votes(votes: Tensor) -> Tensor:
    """Logarithms of class shares (N, L); 0.05 / L is added to each, so that they are finite."""
    return torch.log(votes + 0.05 / votes.shape[-1])


Learner = LinearLearner | Forest


class FeatureModel(nn.Module):
    """A trained model over feature rows; see this module's description for the formulas.

    Parameters
    ----------
    learners : sequence of LinearLearner or Forest
    weights : sequence of float
        Weight of every learner.
    slope : float
        a of the calibration.
    offsets : array of shape (n_classes,)
        b of the calibration.
    dim : int
        Number of features per row.
    num_regions : int
        Number of regions. Of the 1 + `num_regions` equal parts of a row, the first describes the whole image.
    centred : bool
        Whether the scores of every learner are centred.
    normalised : bool
        Whether the weighted sum is normalised to log-probabilities of the classes.
    at_least_one : bool
        Whether every row has at least one label.
    correction : LinearLearner, optional
        Added to the evidence, not centred.

    Examples
    --------
    >>> learner = LinearLearner(torch.eye(3), torch.zeros(3), torch.zeros(3), torch.ones(3))
    >>> model = FeatureModel([learner], [1.0], slope=1.0, offsets=np.zeros(3), dim=3)
    >>> model.presence(np.zeros((2, 3))).round(2)
    array([[0.57, 0.57, 0.57],
           [0.57, 0.57, 0.57]])
    """

    weights: Tensor
    slope: Tensor
    offsets: Tensor

    def __init__(
        self,
        learners: Sequence[Learner],
        weights: Sequence[float],
        *,
        slope: float,
        offsets: npt.NDArray[Any],
        dim: int,
        num_regions: int = 0,
        centred: bool = True,
        normalised: bool = False,
        at_least_one: bool = True,
        correction: LinearLearner | None = None,
    ) -> None:
        super().__init__()
        self.num_regions = num_regions
        self.learners = nn.ModuleList(learners)
        self.correction = correction
        self.register_buffer("weights", torch.tensor(list(weights), dtype=torch.float64))
        self.register_buffer("slope", torch.tensor(slope, dtype=torch.float64))
        self.register_buffer("offsets", torch.as_tensor(offsets, dtype=torch.float64))
        self.dim, self.centred, self.normalised, self.at_least_one = dim, centred, normalised, at_least_one

    @property
    def num_classes(self) -> int:
        return len(self.offsets)

    @property
    def weighted_learners(self) -> list[tuple[Learner, float]]:
        """The learners with their weights, without the correction."""
        learners = [cast(Learner, learner) for learner in self.learners]
        return list(zip(learners, self.weights.tolist(), strict=True))

    @property
    def description(self) -> dict[str, Any]:
        """What `feature_model_from_description` needs besides the state dict; JSON."""
        learners = [learner.description for learner in self.learners]
        description = {"features": self.dim, "num_classes": self.num_classes, "learners": learners}
        description |= {"centred": self.centred, "normalised": self.normalised, "at_least_one": self.at_least_one}
        description |= {"regions": self.num_regions} if self.num_regions else {}
        return description if self.correction is None else {**description, "correction": True}

    def check(self) -> None:
        """Raise ValueError if numbers that were read from a file cannot be those of a trained model."""
        for learner in self._all_learners():
            if isinstance(learner, LinearLearner | Forest):
                learner.check(self.dim // (1 + self.num_regions))

    def forward(self, features: Tensor) -> Outputs:
        """Logits of `presence` for dense rows (B, dim)."""
        scores = [learner(self._parts(features)) for learner in self._all_learners()]
        present = self.presence_of(self._evidence(scores))
        return Outputs(torch.logit(present.clamp(1e-7, 1 - 1e-7)).to(features.dtype))

    def presence(self, features: Any) -> Float64:
        """P(label present | features, the row has at least one label).

        Parameters
        ----------
        features : FeatureStore, array, tensor or scipy sparse matrix of shape (N, dim)

        Returns
        -------
        float64 array of shape (N, L)

        Raises
        ------
        InputError
            If the number of features differs from the training rows'.
        """
        return self.predict(features)[0]

    def predict(self, features: Any) -> tuple[Float64, Float64]:
        """`presence` and p, the input of the calibration of a finished run, each (N, L)."""
        blocks = list(self._evidence_blocks(features))
        tables = [(self.presence_of(block), torch.sigmoid(self._logits(block))) for block in blocks]
        presence, independent = (np.concatenate(list(map(_array, parts))) for parts in zip(*tables, strict=True))
        return presence, independent

    def evidence(self, features: Any) -> Float64:
        """e in the model of this module, (N, L): the input of the calibration."""
        return np.concatenate([_array(block) for block in self._evidence_blocks(features)])

    def as_linear(self) -> tuple[Tensor, Tensor]:
        """Weight (L, dim) and bias (L,) of a linear head with sigmoid(W·x + b) = p, if all learners are linear.

        Raises
        ------
        InputError
            If a learner is not linear, the evidence is normalised, or regions count.
        """
        linear = self.linear_part()
        all_linear = all(isinstance(learner, LinearLearner) for learner in self.learners)
        if linear is None or self.normalised or self.num_regions or not all_linear:
            raise InputError("the model is not linear: train it with base='linear' and normalise=False")
        weight, bias = linear
        return self.slope * weight, self.slope * bias + self.offsets

    def linear_part(self) -> tuple[Tensor, Tensor] | None:
        """What the linear learners add to the evidence: weight (L, dim) and bias (L,); None without linear learners."""
        parts = []
        for learner, share in zip(self.learners, self.weights, strict=True):
            if isinstance(learner, LinearLearner):
                weight, bias = learner.unscaled()
                if self.centred:
                    weight, bias = weight - weight.mean(0), bias - bias.mean()
                parts.append((share * weight, share * bias))
        if self.correction is not None:
            parts.append(self.correction.unscaled())
        return (sum(weight for weight, _ in parts), sum(bias for _, bias in parts)) if parts else None  # type: ignore[return-value]

    def _evidence_blocks(self, features: Any) -> Iterator[Tensor]:
        given = features.shape[1] if hasattr(features, "shape") else features.dim
        if given != self.dim:
            raise InputError(f"{given} features per row, but the model was trained on {self.dim}")
        trees = [len(learner.roots) for learner in self.learners if isinstance(learner, Forest)]
        widest = max(self.dim, 4 * self.num_classes, *[4 * count for count in trees], 1)
        rows = len(features) if isinstance(features, FeatureSource) else features.shape[0]
        size = max(1, _BLOCK // widest)
        for start in range(0, rows, size):
            part = np.arange(start, min(start + size, rows))
            block = features.block(part) if isinstance(features, FeatureSource) else features[start : part[-1] + 1]
            with torch.inference_mode():
                yield self._evidence(self._scores(block))

    def _scores(self, block: Any) -> list[Tensor]:
        """Every learner's scores in double precision: those of a row do not depend on the other rows of a call."""
        device = self.offsets.device
        if hasattr(block, "tocsr"):
            block = block.tocsr()
            return [torch.from_numpy(learner.sparse_scores(block)).to(device) for learner in self._all_learners()]  # type: ignore[operator]
        dense = torch.as_tensor(np.ascontiguousarray(block) if isinstance(block, np.ndarray) else block)
        parts = self._parts(dense.to(device).double())
        return [learner(parts).double() for learner in self._all_learners()]

    def _parts(self, features: Tensor) -> Tensor:
        """Rows (B, dim) as one row for each image and each of its regions."""
        return features.unflatten(-1, (1 + self.num_regions, -1)).flatten(0, 1) if self.num_regions else features

    def _all_learners(self) -> list[nn.Module]:
        return [*self.learners, *([] if self.correction is None else [self.correction])]

    def _evidence(self, scores: Sequence[Tensor]) -> Tensor:
        """The evidence from the scores of `_all_learners`, of which the correction's come last."""
        of_learners, correction = (scores, None) if self.correction is None else (scores[:-1], scores[-1])
        total = torch.zeros_like(scores[0])
        for weight, score in zip(self.weights, of_learners, strict=True):
            total = total + weight.to(score.dtype) * (centred(score) if self.centred else score)
        if self.normalised:
            total = torch.log_softmax(total, -1)
        if self.num_regions:
            parts = total.unflatten(0, (-1, 1 + self.num_regions))
            total = (parts[:, 0] + parts[:, 1:].amax(1)) / 2
            correction = None if correction is None else correction[:: 1 + self.num_regions]
        return total if correction is None else total + correction

    def presence_of(self, evidence: Tensor) -> Tensor:
        """The presence that follows from the evidence."""
        logits = self._logits(evidence)
        return given_one(logits) if self.at_least_one else torch.sigmoid(logits)

    def _logits(self, evidence: Tensor) -> Tensor:
        return self.slope.to(evidence.dtype) * evidence + self.offsets.to(evidence.dtype)


def given_one(logits: Tensor) -> Tensor:
    """p / (1 − Π(1 − p)) with p = σ(logits): presence in rows that have at least one label."""
    some = -torch.expm1(F.logsigmoid(-logits).sum(-1, keepdim=True))
    return (torch.sigmoid(logits) / some.clamp(min=1e-30)).clamp(max=1.0)


def independent_network(network: nn.Module) -> nn.Module | None:
    """A copy that returns the logits of p instead of those of p / (1 − Π(1 − p)); None if it would be the same."""
    if not any(isinstance(module, FeatureModel) and module.at_least_one for module in network.modules()):
        return None
    network = copy.deepcopy(network)
    for module in network.modules():
        if isinstance(module, FeatureModel):
            module.at_least_one = False
    return network


def centred(scores: Tensor) -> Tensor:
    """Scores minus their mean over the classes."""
    return scores - scores.mean(-1, keepdim=True)


def sum_linear_learners(learners: Sequence[tuple[Learner, float]]) -> list[tuple[Learner, float]]:
    """Replace the linear ones of weighted learners by one, their weighted sum with weight 1. Others stay.

    All linear learners must have the same mean and deviation.
    """
    linear = [(learner, share) for learner, share in learners if isinstance(learner, LinearLearner)]
    if len(linear) < 2:
        return list(learners)
    first = linear[0][0]
    weight = torch.stack([share * learner.weight for learner, share in linear]).sum(0)
    bias = torch.stack([share * learner.bias for learner, share in linear]).sum(0)
    others = [(learner, share) for learner, share in learners if not isinstance(learner, LinearLearner)]
    return [(LinearLearner(weight, bias, first.mean, first.deviation), 1.0), *others]


def feature_model_from_description(description: Mapping[str, Any]) -> FeatureModel:
    """Build the model of a description; load its state dict afterwards.

    Examples
    --------
    >>> learner = LinearLearner.empty(dim=4, classes=2)
    >>> model = FeatureModel([learner], [1.0], slope=2.0, offsets=np.zeros(2), dim=4)
    >>> again = feature_model_from_description(model.description)
    >>> again.load_state_dict(model.state_dict())
    <All keys matched successfully>
    """
    dim, classes = description["features"], description["num_classes"]
    num_regions = description.get("regions", 0)
    of_learner = dim // (1 + num_regions)
    learners: list[Learner] = []
    for record in description["learners"]:
        sizes = {name: value for name, value in record.items() if name != "kind"}
        linear = record["kind"] == LinearLearner.kind
        learners.append(LinearLearner.empty(of_learner, classes) if linear else Forest.empty(classes, **sizes))
    options = {name: description[name] for name in ("centred", "at_least_one")}
    options["normalised"] = description.get("normalised", False)  # models before this option have none
    if description.get("correction"):
        options["correction"] = LinearLearner.empty(of_learner, classes)
    weights, offsets = [1.0] * len(learners), np.zeros(classes)
    return FeatureModel(learners, weights, slope=1.0, offsets=offsets, dim=dim, num_regions=num_regions, **options)


def _array(values: Tensor) -> Float64:
    return values.double().cpu().numpy()
