"""Features of a frozen backbone on a CPU, several times faster than the classifier computes them itself.

Batch normalisation is folded into the convolutions before it. Where onnxruntime is installed (extra `export`), it
computes the network with one stream per core. Both are checked against the classifier on the first images; if they
differ, the classifier is used as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from spml.models.classifier import Classifier
from spml.models.quiet_export import quiet_export

ZOOMS = (1.0, 1.5)
"""Multiples of the image size whose features are averaged: the larger ones show small objects."""
TOLERANCE = 1e-4
"""Largest difference to the classifier's own features, relative to the largest feature."""
_ROWS_PER_STREAM = 4  # activations of a few images stay in the cache of a core
_TEST_ROWS = 2

Features = Callable[[Tensor], Tensor]


class FrozenFeatures:
    """`Classifier.features_at(images, 1, regions=regions)` in evaluation mode, for many batches on a CPU.

    Parameters
    ----------
    classifier : Classifier
        Its weights must not change afterwards.
    regions : bool

    Examples
    --------
    >>> from spml.models import build_classifier
    >>> classifier = build_classifier("small", num_classes=3).eval()
    >>> images = torch.randint(0, 256, (5, 3, 64, 64), dtype=torch.uint8)
    >>> with torch.no_grad():
    ...     fast, own = FrozenFeatures(classifier)(images), classifier.features_at(images, 1)
    >>> bool((fast - own).abs().max() < 1e-4 * own.abs().max())
    True
    """

    def __init__(self, classifier: Classifier, *, regions: bool = False) -> None:
        self._classifier, self._regions = classifier, regions
        self._by_size: dict[torch.Size, Features] = {}

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        size = images.shape[1:]
        if size not in self._by_size:
            self._by_size[size] = self._fastest(images[:_TEST_ROWS])
        return self._by_size[size](images)

    def _fastest(self, images: Tensor) -> Features:
        own = partial(self._classifier.features_at, zoom=1, regions=self._regions)
        folded = fold_batch_norm(self._classifier, images[:1]).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        fast, expected = partial(folded.features_at, zoom=1, regions=self._regions), own(images)
        if not _close(fast(images), expected):
            return own
        try:
            streams = _onnx_streams(folded, self._regions, images)
        except Exception:  # not installed, or an operator is not supported: every exporter raises its own errors
            return _channels_last(fast)
        return streams if _close(streams(images), expected) else _channels_last(fast)


def fold_batch_norm(classifier: Classifier, images: Tensor) -> Classifier:
    """A copy of the classifier in which every batch normalisation that directly follows a convolution is part of it."""
    folded = copy.deepcopy(classifier).eval()
    source: dict[int, tuple[nn.Conv2d, Tensor]] = {}  # by id of the output, which is kept alive
    pairs: list[tuple[nn.Conv2d, nn.BatchNorm2d]] = []

    def after_convolution(module: nn.Module, _: Any, output: Tensor) -> None:
        assert isinstance(module, nn.Conv2d)
        source[id(output)] = module, output

    def before_norm(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if id(inputs[0]) in source:
            assert isinstance(module, nn.BatchNorm2d)
            pairs.append((source[id(inputs[0])][0], module))

    hooks = [m.register_forward_hook(after_convolution) for m in folded.modules() if isinstance(m, nn.Conv2d)]
    hooks += [m.register_forward_pre_hook(before_norm) for m in folded.modules() if isinstance(m, nn.BatchNorm2d)]
    with torch.no_grad():
        folded.features_at(images, 1)
    for hook in hooks:
        hook.remove()
    replacement = {id(norm): _fold(convolution, norm) for convolution, norm in pairs}
    for parent in list(folded.modules()):
        for name, child in parent.named_children():
            if id(child) in replacement:
                setattr(parent, name, replacement[id(child)])
    return folded


def _fold(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> nn.Module:
    """Scale and shift the filters as the normalisation would; returns what is left of it: timm's activation."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight.double() / torch.sqrt(norm.running_var.double() + norm.eps)
    bias = torch.zeros_like(scale) if convolution.bias is None else convolution.bias.double()
    shifted = (bias - norm.running_mean.double()) * scale + norm.bias.double()
    convolution.weight.data = (convolution.weight.double() * scale[:, None, None, None]).float()
    convolution.bias = nn.Parameter(shifted.float())
    return nn.Sequential(*(part for name, part in norm.named_children() if name in ("drop", "act")))


def _channels_last(features: Features) -> Features:
    return lambda images: features(images.contiguous(memory_format=torch.channels_last))


def _onnx_streams(classifier: Classifier, regions: bool, images: Tensor) -> Features:
    """Return the features by onnxruntime: the rows of a batch are divided among single-threaded streams."""
    import onnxruntime

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.classifier = classifier

        def forward(self, images: Tensor) -> Tensor:
            return self.classifier.features_at(images, 1, regions=regions)

    with quiet_export():
        program = torch.onnx.export(
            Pooled().eval(), (images,), dynamo=True, input_names=["images"], verbose=False,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )  # fmt: skip
    assert program is not None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        program.model_proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    pool = ThreadPoolExecutor(torch.get_num_threads())

    def part(rows: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {"images": rows.numpy()})[0])

    return lambda images: torch.cat(list(pool.map(part, images.contiguous().split(_ROWS_PER_STREAM))))


def _close(features: Tensor, expected: Tensor) -> bool:
    return bool((features - expected).abs().max() <= TOLERANCE * expected.abs().max())
