"""Heads: modules that turn a feature map (B, C, h, w) into one logit per class.

Logits are float32 even under bfloat16 autocast: with eight bits of mantissa thousands of rows would have equal
scores, and average precision depends on their order.
"""

import inspect
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spml.errors import InputError
from spml.type_checks import check_count


class Outputs(NamedTuple):
    """The outputs of a classifier for one view.

    Parameters
    ----------
    logits : Tensor of shape (B, L)
    embeddings : Tensor of shape (B, L, d) or None
        Label-wise projections of unit length, from a label-wise head with projection.
    maps : Tensor of shape (B, L, h, w) or None
        Class maps. From a CAM head: the values whose mean is the logit. From a label-wise head: the weights of the
        last cross-attention over positions, averaged over attention heads, without gradient.

    Examples
    --------
    >>> outputs = Outputs(torch.zeros(2, 3))
    >>> outputs.logits.shape, outputs.maps
    (torch.Size([2, 3]), None)
    """

    logits: Tensor
    embeddings: Tensor | None = None
    maps: Tensor | None = None


Pooling = Literal["mean", "rms"]
"""The mean over positions, or the root mean square, in which a strong response at few positions counts more."""
REGIONS = 9
"""Number of overlapping regions of an image, three by three; see `pool_regions`."""


def pool(features: Tensor, pooling: Pooling = "mean") -> Tensor:
    """Pool over positions, (B, C, h, w) -> (B, C), in float32 or wider. Pooled features (B, C) stay as they are.

    Examples
    --------
    >>> corner = torch.tensor([[[[2.0, 0.0], [0.0, 0.0]]]])
    >>> pool(corner).item(), pool(corner, "rms").item()
    (0.5, 1.0)
    """
    dtype = torch.promote_types(features.dtype, torch.float32)
    if features.ndim != 4:
        return features.to(dtype)
    if pooling == "rms":
        return features.to(dtype).square().mean((-2, -1)).clamp(min=1e-12).sqrt()  # at 0 the gradient is not finite
    return features.mean((-2, -1), dtype=dtype)


def pool_regions(features: Tensor, pooling: Pooling = "mean") -> Tensor:
    """Pool nine overlapping regions, half as high and wide as the map: (B, C, h, w) -> (B, 9, C).

    Features (B, C) that are pooled already are those of every region.

    Examples
    --------
    >>> corner = torch.zeros(1, 1, 4, 4)
    >>> corner[0, 0, 0, 0] = 4
    >>> pool_regions(corner).flatten().tolist()
    [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    """
    if features.ndim != 4:
        return pool(features)[:, None].expand(-1, REGIONS, -1)
    sides = [(size + 1) // 2 for size in features.shape[-2:]]
    starts = [(0, (size - side) // 2, size - side) for size, side in zip(features.shape[-2:], sides, strict=True)]
    regions = [features[..., y : y + sides[0], x : x + sides[1]] for y in starts[0] for x in starts[1]]
    return torch.stack([pool(region, pooling) for region in regions], 1)


class Head(nn.Module):
    """Base class of heads: feature map -> `Outputs`. `settings` holds the keyword arguments to build it again.

    With `accepts_pooled`, it also takes pooled features (B, C).
    """

    accepts_pooled: ClassVar[bool] = False
    settings: dict[str, Any]

    @classmethod
    def setting_names(cls) -> list[str]:
        """Names of the settings: the keyword-only arguments of the constructor."""
        parameters = inspect.signature(cls).parameters.values()
        return [parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]

    def start_from_linear(self, weight: Tensor, bias: Tensor) -> bool:
        """Initialise from a linear layer on pooled features, weight (L, C) and bias (L,).

        Returns False if this kind of head cannot.
        """
        return False

    def start_from_frequencies(self, frequencies: Tensor) -> bool:
        """Initialise the bias so that the first predictions are the label frequencies (L,).

        A head that starts at probability one half must first learn that most labels are absent, and the large
        gradients of that phase disturb the backbone. Returns False if this kind of head cannot.
        """
        return False


class LinearHead(Head):
    """Global average pooling, dropout and one linear layer.

    Parameters
    ----------
    channels : int
    num_classes : int
    dropout : float
    """

    accepts_pooled = True

    def __init__(self, channels: int, num_classes: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.settings = {"dropout": _fraction("dropout", dropout)}
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(channels, num_classes)

    @torch.no_grad()
    def start_from_linear(self, weight: Tensor, bias: Tensor) -> bool:
        self.linear.weight.copy_(weight)
        self.linear.bias.copy_(bias)
        return True

    def forward(self, features: Tensor) -> Outputs:
        pooled = self.dropout(pool(features)).to(self.linear.weight.dtype)
        with torch.autocast(pooled.device.type, enabled=False):
            return Outputs(self.linear(pooled))


class CamHead(Head):
    """Class activation maps by a 1×1 convolution, then global average pooling.

    With `boost=1` and `peak=0` this is the linear head, computed in the other order.

    Parameters
    ----------
    channels : int
    num_classes : int
    dropout : float
        Drops whole channels, which is equivalent to dropping pooled features.
    boost : float
        BoostLU (Kim et al. 2023): activations above 0, bias included, are multiplied by this factor before pooling
        (α; published: 5).
    peak : float
        Adds this multiple of every map's maximum to its mean (class-specific residual attention, Zhu and Wu 2021, at
        its highest temperature), so that a label visible in one corner is not averaged away.
    """

    def __init__(
        self, channels: int, num_classes: int, *, dropout: float = 0.0, boost: float = 1.0, peak: float = 0.0
    ) -> None:
        super().__init__()
        if not (math.isfinite(peak) and peak >= 0):
            raise InputError(f"head setting peak must be a finite number, 0 or above, not {peak!r}")
        if not (math.isfinite(boost) and boost > 0):
            raise InputError(f"head setting boost must be a finite number above 0 (published: 5), not {boost!r}")
        self.settings = {"dropout": _fraction("dropout", dropout), "boost": float(boost), "peak": float(peak)}
        self.boost, self.peak = float(boost), float(peak)
        self.dropout = nn.Dropout2d(dropout)
        self.classes = nn.Conv2d(channels, num_classes, 1)

    @torch.no_grad()
    def start_from_linear(self, weight: Tensor, bias: Tensor) -> bool:
        """Initialise from a linear layer, scaled down by 1 + peak: the maximum adds at least `peak` times the mean."""
        assert self.classes.bias is not None
        self.classes.weight.copy_(weight[:, :, None, None] / (1 + self.peak))
        self.classes.bias.copy_(bias / (1 + self.peak))
        return True

    def forward(self, features: Tensor) -> Outputs:
        maps = self.classes(self.dropout(features))
        if self.boost != 1.0:
            maps = torch.where(maps > 0, maps * self.boost, maps)
        logits = pool(maps)
        if self.peak:
            logits = logits + self.peak * maps.amax((-2, -1)).to(logits.dtype)
        return Outputs(logits, maps=maps)


class AttentionLayer(nn.Module):
    """Multi-head attention and a feed-forward network, each with a residual connection and post-normalisation."""

    def __init__(self, width: int, heads: int, feedforward: int, dropout: float) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, dropout=dropout, batch_first=True)
        self.attention_norm = nn.LayerNorm(width)
        self.feedforward = nn.Sequential(
            nn.Linear(width, feedforward), nn.ReLU(inplace=True), nn.Dropout(dropout), nn.Linear(feedforward, width)
        )
        self.feedforward_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, state: Tensor, query: Tensor, key: Tensor, value: Tensor, with_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """state, query (B, M, d); key, value (B, N, d) -> new state (B, M, d), weights (B, M, N) if requested."""
        attended, weights = self.attention(query, key, value, need_weights=with_weights)
        state = self.attention_norm(state + self.dropout(attended))
        return self.feedforward_norm(state + self.dropout(self.feedforward(state))), weights


def sine_positions(height: int, width: int, channels: int, device: torch.device | None = None) -> Tensor:
    """2-D sine encoding (height·width, channels), row by row: a quarter each of sin y, cos y, sin x, cos x.

    Row i has the angle 2π(i+1)/height (columns likewise), so the encoding of a position in the image does not depend
    on the resolution of the map; the frequencies are 10000^(−4j/channels), j < channels/4.
    """
    frequencies = 10000.0 ** (torch.arange(channels // 4, device=device) * (-4.0 / channels))
    down = torch.arange(1, height + 1, device=device)[:, None] * (2 * math.pi / height) * frequencies
    across = torch.arange(1, width + 1, device=device)[:, None] * (2 * math.pi / width) * frequencies
    rows = torch.cat((down.sin(), down.cos()), -1)[:, None].expand(-1, width, -1)
    columns = torch.cat((across.sin(), across.cos()), -1)[None].expand(height, -1, -1)
    return torch.cat((rows, columns), -1).flatten(0, 1)


class LabelWiseHead(Head):
    """Label-wise embeddings of LAC (Xie et al. 2022): one embedding per class, by attention over positions.

    The map is projected to `width` channels (if it has that many already, it is used as it is, as published).
    Encoder layers attend among positions; decoder layers cross-attend from one learned query per class, and classes
    do not attend to each other. Sine positions are added to keys and encoder queries, class queries to decoder
    queries, neither to values. The embedding f_j is the normalised state of class j, its logit is w_j·f_j + b_j, and
    its projection z_j = g(f_j) is two linear layers with a ReLU between them, scaled to unit length.

    Parameters
    ----------
    channels : int
    num_classes : int
    dropout : float
        Published: 0.1.
    width : int, optional
        Default: the channels, at most 2048. Published: 2048, the channels of ResNet-50.
    heads : int
        Attention heads. Published: 4.
    feedforward : int, optional
        Default: four times the width. Published: 8192.
    encoder_layers, decoder_layers : int
        Published: 1 and 2.
    projection : bool
        Whether the head also returns z_j.
    projection_width : int
        Published: 128.
    with_maps : bool
        Also return the last cross-attention as maps; in training mode they include the attention's dropout. It can
        be changed later through the attribute of the same name.
    """

    width_divisor = 1

    def __init__(
        self,
        channels: int,
        num_classes: int,
        *,
        dropout: float = 0.1,
        width: int | None = None,
        heads: int = 4,
        feedforward: int | None = None,
        encoder_layers: int = 1,
        decoder_layers: int = 2,
        projection: bool = True,
        projection_width: int = 128,
        with_maps: bool = False,
    ) -> None:
        super().__init__()
        width = self._check_width(width, channels, check_count("head setting heads", heads))
        feedforward = 4 * width if feedforward is None else check_count("head setting feedforward", feedforward)
        check_count("head setting encoder_layers", encoder_layers, least=0)
        check_count("head setting decoder_layers", decoder_layers)
        check_count("head setting projection_width", projection_width)
        self.settings = {
            "dropout": _fraction("dropout", dropout),
            "width": width,
            "heads": heads,
            "feedforward": feedforward,
            "encoder_layers": encoder_layers,
            "decoder_layers": decoder_layers,
            "projection": projection,
            "projection_width": projection_width,
            "with_maps": with_maps,
        }
        self.with_maps = with_maps
        self.width = width
        self.input = nn.Identity() if width == channels else nn.Linear(channels, width)
        self.encoder = nn.ModuleList(AttentionLayer(width, heads, feedforward, dropout) for _ in range(encoder_layers))
        self.queries = nn.Parameter(torch.randn(num_classes, width))
        self.decoder = nn.ModuleList(AttentionLayer(width, heads, feedforward, dropout) for _ in range(decoder_layers))
        self.norm = nn.LayerNorm(width)
        for matrix in (*self.encoder.parameters(), *self.decoder.parameters()):
            if matrix.ndim > 1:
                nn.init.xavier_uniform_(matrix)
        self.weight = nn.Parameter(torch.empty(num_classes, width).uniform_(-(width**-0.5), width**-0.5))
        self.bias = nn.Parameter(torch.empty(num_classes).uniform_(-(width**-0.5), width**-0.5))
        self.projection: nn.Module | None = None
        if projection:
            self.projection = nn.Sequential(
                nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, projection_width)
            )

    def _check_width(self, width: int | None, channels: int, heads: int) -> int:
        step = math.lcm(heads, 4)  # attention splits the width by heads, the sine encoding by four
        if width is None:
            return max(min(channels, 2048) // self.width_divisor // step * step, step)
        if check_count("head setting width", width) % step:
            raise InputError(f"head setting width must be a multiple of {step} with {heads} heads, not {width}")
        return width

    @torch.no_grad()
    def start_from_frequencies(self, frequencies: Tensor) -> bool:
        self.bias.copy_(torch.logit(frequencies.to(self.bias), eps=1e-4))
        return True

    def forward(self, features: Tensor) -> Outputs:
        batch, _, height, width = features.shape
        memory = self.input(features.flatten(2).transpose(1, 2))  # (B, h·w, d): a 1×1 convolution
        positions = sine_positions(height, width, self.width, features.device).to(memory.dtype)
        for layer in self.encoder:
            positioned = memory + positions
            memory, _ = layer(memory, positioned, positioned, memory)
        key = memory + positions
        state = torch.zeros_like(self.queries).expand(batch, -1, -1)
        weights: Tensor | None = None
        for index, layer in enumerate(self.decoder):
            with_weights = self.with_maps and index == len(self.decoder) - 1
            state, weights = layer(state, state + self.queries, key, memory, with_weights)
        embeddings = self.norm(state)  # f_j(x)
        # An element-wise product stays in float32 under autocast, like the output of the layer norm.
        logits = (embeddings * self.weight).sum(-1) + self.bias
        projected: Tensor | None = None
        if self.projection is not None:
            projected = self.projection(embeddings)
            projected = F.normalize(projected.to(torch.promote_types(projected.dtype, torch.float32)), dim=-1)
        maps = None if weights is None else weights.detach().unflatten(-1, (height, width))
        return Outputs(logits, projected, maps)


class AttentionHead(LabelWiseHead):
    """A label-wise head of half the width without projection.

    It has a quarter of the parameters and needs a third of the time. Its settings are those of `LabelWiseHead`, except
    `projection` and `projection_width`.
    """

    width_divisor = 2

    def __init__(self, channels: int, num_classes: int, **settings: Any) -> None:
        super().__init__(channels, num_classes, projection=False, **settings)
        self.settings = {name: self.settings[name] for name in self.setting_names()}

    @classmethod
    def setting_names(cls) -> list[str]:
        return [name for name in LabelWiseHead.setting_names() if not name.startswith("projection")]


HEADS: dict[str, type[LinearHead] | type[CamHead] | type[LabelWiseHead]] = {
    "linear": LinearHead,
    "label-wise": LabelWiseHead,
    "attention": AttentionHead,
    "cam": CamHead,
}


def build_head(name: str, channels: int, num_classes: int, settings: Mapping[str, Any]) -> Head:
    """Build a head by its name in `HEADS`. For unknown names or settings, the error lists the known ones."""
    if name not in HEADS:
        raise InputError(f"no head named {name!r}. Available heads: {', '.join(HEADS)}")
    known = HEADS[name].setting_names()
    for setting in settings:
        if setting not in known:
            raise InputError(f"head {name!r} has no setting {setting!r}. Available settings: {', '.join(known)}")
    return HEADS[name](channels, num_classes, **settings)


def _fraction(name: str, value: float) -> float:
    if not 0 <= value < 1:
        raise InputError(f"head setting {name} must be in [0, 1), not {value!r}")
    return float(value)
