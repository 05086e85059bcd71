"""Pictures of rows with their labels: given, recovered, wrong and missed, and how sure the run is of each."""

import base64
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.nn.functional import interpolate

from spml.data.stores.images import ImageStore
from spml.errors import InputError
from spml.models import Classifier
from spml.report.beliefs import Beliefs, Bool
from spml.report.markup import Html, count, percent, tag
from spml.runs.folder import RunFolder

UInt8 = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]

KINDS = {  # a label's kind: its sign, and what it says
    "given": ("●", "given with the data"),
    "right": ("✓", "recovered, and right"),
    "wrong": ("✗", "recovered, but wrong"),
    "new": ("+", "recovered"),
    "missed": ("○", "there, but not recovered"),
}
_TOP = 5
_CHIPS = 8


def pixels(run: RunFolder, row: int) -> UInt8 | None:
    """A row's image (H, W, 3), or None where there is none or it can no longer be read."""
    if not isinstance(run.store, ImageStore):
        return None
    try:
        image: UInt8 = run.store.batch([row])[0].permute(1, 2, 0).cpu().numpy()
    except InputError:
        return None
    return image


def picture(image: UInt8, alt: str, size: int) -> Html:
    """An image as a JPEG in the page itself, at most `size` pixels wide."""
    made = Image.fromarray(image)
    if made.width > size:
        made = made.resize((size, size), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    made.save(file, "JPEG", quality=82 if made.width > 96 else 92, optimize=True)
    data = base64.b64encode(file.getvalue()).decode()
    return tag("img", src=f"data:image/jpeg;base64,{data}", alt=alt, width=made.width, height=made.height)


def kind_of(beliefs: Beliefs, row: int, label: int) -> str:
    """What a label is to a row: a key of `KINDS`, or "absent"."""
    if beliefs.observed[row, label] > 0:
        return "given"
    if beliefs.present[row, label] and beliefs.observed[row, label] == 0:
        return {1: "right", -1: "wrong", 0: "new"}[int(beliefs.truth[row, label])]
    return "missed" if beliefs.missed[row, label] else "absent"


def card(beliefs: Beliefs, row: int, size: int, focus: int | None = None) -> Html:
    """One row: its image, its labels as chips, and bars of how sure the run is of the likeliest.

    `focus` is the label for which the row was picked: it stands out, and has a bar however unlikely it is.
    """
    run = beliefs.run
    order = np.argsort(-np.nan_to_num(beliefs.confidence[row]), kind="stable")
    kinds = {int(label): kind_of(beliefs, row, int(label)) for label in order}
    top = order[:_TOP].tolist()
    if focus is not None and focus not in top:
        top[-1] = focus
    image = pixels(run, row)
    said = "; ".join(
        f"{words}: {', '.join(run.classes[label] for label in kinds if kinds[label] == kind)}"
        for kind, (_, words) in KINDS.items()
        if kind in kinds.values()
    )
    return tag(
        "li",
        None if image is None else picture(image, f"{run.names[row]}. {said}", size),
        tag(
            "div",
            tag("p", run.names[row], class_="file name", title=run.names[row]),
            tag("ul", *_chips(run, kinds, focus), class_="chips"),
            tag("ol", *(_bar(beliefs, row, label, kinds[label], label == focus) for label in top), class_="sure"),
            class_="words",
        ),
        class_="card example",
    )


def _chips(run: RunFolder, kinds: dict[int, str], focus: int | None) -> Iterator[Html]:
    for kind, (sign, words) in KINDS.items():
        labels = [label for label, its in kinds.items() if its == kind]
        labels.sort(key=lambda label: label != focus)
        for label in labels[:_CHIPS]:
            yield tag(
                "li",
                tag("span", sign, aria_hidden="true"),
                " ",
                tag("span", run.classes[label], class_="name"),
                tag("span", f" ({words})", class_="spoken"),
                class_=f"chip {kind}" + (" focus" if label == focus else ""),
                title=words,
            )
        if len(labels) > _CHIPS:
            yield tag("li", f"+{len(labels) - _CHIPS} more {words}", class_=f"chip {kind}")


def _bar(beliefs: Beliefs, row: int, label: int, kind: str, focus: bool) -> Html:
    confidence = float(np.nan_to_num(beliefs.confidence[row, label]))
    fill = tag("span", class_=f"fill {kind}", style=f"width:{100 * confidence:.1f}%")
    return tag(
        "li",
        tag("span", beliefs.run.classes[label], class_="name"),
        tag("span", fill, class_="bar"),
        tag("span", percent(confidence), class_="value"),
        class_="focus" if focus else None,
    )


def gallery(title: str, note: str, cards: Sequence[Html]) -> Html | None:
    """A titled grid of cards; nothing where there is none."""
    if not cards:
        return None
    return tag("div", tag("h3", title), tag("p", note), tag("ul", *cards, class_="gallery"), class_="pictures")


def galleries(beliefs: Beliefs, each: int, size: int) -> list[Html | None]:
    """The recovered labels of a run in pictures, its errors among them."""

    def cards(picked: Iterable[tuple[int, int]]) -> list[Html]:
        return [card(beliefs, row, size, focus) for row, focus in picked]

    total = count(beliefs.recovery.count, "recovered label")
    drawn = np.random.default_rng(0).permutation(beliefs.rows)[:each]
    shown = [
        gallery(
            "Picked at random",
            "Neither the best nor the worst: a fair look.",
            [card(beliefs, row, size) for row in sorted(drawn.tolist())],
        ),
        gallery(
            "Most sure",
            f"Of {total} those with the highest confidence, of different labels first.",
            cards(extremes(beliefs, beliefs.recovered, each)),
        ),
        gallery(
            "Least sure",
            "Only just believed. Look here first if you check by hand.",
            cards(extremes(beliefs, beliefs.recovered, each, least=True)),
        ),
    ]
    if beliefs.judged:
        wrong, missed = int(beliefs.wrong.sum()), int(beliefs.missed.sum())
        shown += [
            gallery(
                "Wrong, and sure of it",
                f"Wrong are {wrong:,} of {count(beliefs.recovery.judged, 'recovered label')}; here the surest of them.",
                cards(extremes(beliefs, beliefs.wrong, each)),
            ),
            gallery(
                "Missed",
                f"Not recovered are {missed:,} of {count(beliefs.recovery.missing, 'missing label')}; here those that "
                "were thought the least likely.",
                cards(extremes(beliefs, beliefs.missed, each, least=True)),
            ),
        ]
    return shown


def extremes(beliefs: Beliefs, among: Bool, wanted: int, least: bool = False) -> list[tuple[int, int]]:
    """(row, label) of the most (or least) confident entries of a table: no row twice, and different labels first."""
    rows, labels = np.nonzero(among)
    confidence = beliefs.confidence[rows, labels]
    order = np.argsort(confidence if least else -confidence, kind="stable")
    chosen: dict[int, int] = {}  # row: place
    seen: set[int] = set()
    for fresh_labels_only in (True, False):
        for place in order:
            row, label = int(rows[place]), int(labels[place])
            if len(chosen) == wanted:
                break
            if row not in chosen and not (fresh_labels_only and label in seen):
                chosen[row] = int(place)
                seen.add(label)
    places = sorted(chosen.values(), key=lambda place: float(confidence[place]), reverse=not least)
    return [(int(rows[place]), int(labels[place])) for place in places]


def legend_of_chips(beliefs: Beliefs) -> Html:
    """What the chips mean, for those that occur."""
    kinds = ["given", *(["right", "wrong", "missed"] if beliefs.judged else [])]
    if (beliefs.recovered & (beliefs.truth == 0)).any() or not beliefs.judged:
        kinds.append("new")
    chips = (
        tag("li", tag("span", KINDS[k][0], aria_hidden="true"), " ", KINDS[k][1], class_=f"chip {k}") for k in kinds
    )
    return tag("ul", *chips, class_="chips key-of-chips")


def looks(beliefs: Beliefs, rows: Sequence[int], size: int, labels_each: int = 3) -> list[Html]:
    """For a few rows, what spoke for the labels the network is surest of; empty where it has no places or images."""
    try:
        network = beliefs.run.network()
    except InputError:  # a module of the user's own, which the run's folder does not hold
        return []
    if not isinstance(network, Classifier):  # of features
        return []
    cards = []
    for row in rows:
        image = pixels(beliefs.run, row)
        if image is None:
            continue
        order = np.argsort(-np.nan_to_num(beliefs.confidence[row]), kind="stable")
        labels = order[beliefs.present[row, order]][:labels_each].tolist()
        maps = evidence(network, image, labels)
        if maps is None:
            return []
        cards.append(_looked_at(beliefs, row, image, dict(zip(labels, maps, strict=True)), size))
    return cards


def evidence(network: Classifier, image: UInt8, labels: Sequence[int]) -> list[torch.Tensor] | None:
    """How much more than most a place (h, w) of the feature map raises a label's logit, by Σ_c feature · gradient.

    Of a linear head these are its class activation maps. They are taken from their median: a bias may speak for a label
    against which every place speaks. None where features have no places.
    """
    with torch.no_grad():
        features = network.feature_map(torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))[None])
    if features.ndim != 4:
        return None
    features.requires_grad_(True)
    logits = network.head(features).logits[0]
    gradients = [torch.autograd.grad(logits[label], features, retain_graph=True)[0] for label in labels]
    maps = [(features * gradient).detach()[0].sum(0) for gradient in gradients]
    return [(map_ - map_.median()).relu() for map_ in maps]


def _looked_at(beliefs: Beliefs, row: int, image: UInt8, maps: Mapping[int, torch.Tensor], size: int) -> Html:
    run = beliefs.run
    shown = [tag("figure", picture(image, run.names[row], size), tag("figcaption", "the image"))]
    for label in maps:
        kind = kind_of(beliefs, row, label)
        sign = f"{KINDS[kind][0]} " if kind in KINDS else ""  # a verified negative that is believed has none
        alt = f"{run.names[row]}: what spoke for {run.classes[label]}"
        words = tag("figcaption", sign, tag("span", run.classes[label], class_="name"), class_=kind)
        shown.append(tag("figure", picture(lit(image, maps[label]), alt, size), words))
    name = tag("p", run.names[row], class_="file name", title=run.names[row])
    return tag("li", tag("div", *shown, class_="maps"), name, class_="card")


def lit(image: UInt8, weights: torch.Tensor) -> UInt8:
    """The image in dim grey, with its own colours and a warm glow where the weights (h, w) are high."""
    height, width, _ = image.shape
    weights = weights.float().clamp(min=0)
    large = interpolate(weights[None, None], (height, width), mode="bicubic", align_corners=False)[0, 0]
    glow = (large / large.max().clamp(min=1e-12)).clamp(0, 1).numpy()[..., None]
    grey = image.mean(axis=2, keepdims=True).repeat(3, axis=2) * 0.5
    warm = 0.7 * image + 0.3 * np.array([255.0, 150.0, 30.0])
    mixed: UInt8 = np.clip(grey * (1 - glow) + warm * glow, 0, 255).astype(np.uint8)
    return mixed
