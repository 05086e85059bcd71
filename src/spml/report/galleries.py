"""Pictures of examples with their observed, recovered, wrong and missed labels, and the confidence of each."""

import base64
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from spml.calibration import Bool
from spml.data.stores.images import ImageStore
from spml.data.stores.texts import TextStore
from spml.errors import InputError
from spml.models import Classifier
from spml.models.text_encoders import TfidfEncoder
from spml.predict.evidence import highlight, marked_words, support_maps
from spml.report.markup import Html, count, join, percent, tag
from spml.report.tables import RunTables
from spml.runs.folder import RunFolder

UInt8 = npt.NDArray[np.uint8]
Piece = tuple[str, float]
"""A piece of a text and how strongly it is marked, 0 to 1."""

KINDS = {  # symbol and description of each kind of label
    "given": ("●", "observed"),
    "right": ("✓", "recovered, correct"),
    "wrong": ("✗", "recovered, wrong"),
    "new": ("+", "recovered"),
    "missed": ("○", "present, but not recovered"),
}
_TOP = 5
_SHOWN_LETTERS, _LETTERS = 320, 1500  # of a text: at once, and with the part under "More"
_CHIPS = 8


def pixels(run: RunFolder, row: int) -> UInt8 | None:
    """Return a row's image (H, W, 3), or None if it has none or it can no longer be read."""
    if not isinstance(run.store, ImageStore):
        return None
    try:
        image: UInt8 = run.store.batch([row])[0].permute(1, 2, 0).cpu().numpy()
    except InputError:
        return None
    return image


def marked_text(tables: RunTables, row: int, label: int) -> Html | None:
    """Return the beginning of a row's text, with the words that support a label marked; None without texts."""
    run = tables.run
    if not isinstance(run.store, TextStore):
        return None
    whole, encoder = run.store.texts([row])[0], run.encoder
    text = whole if len(whole) <= _LETTERS else f"{whole[:_LETTERS].rstrip()}…"
    pieces = [(text, 0.0)]
    if isinstance(encoder, TfidfEncoder) and tables.linear_weights is not None:
        pieces = marked_words(encoder, text, tables.linear_weights[label])
    beginning, rest = split_pieces(pieces, _SHOWN_LETTERS)
    if not rest:
        return tag("p", *_marked(beginning), class_="passage")
    more = tag("details", tag("summary", "More"), tag("p", *_marked(rest), class_="passage"), class_="more")
    return join(tag("p", *_marked(beginning), "…", class_="passage"), more)


def split_pieces(pieces: Sequence[Piece], letters: int) -> tuple[list[Piece], list[Piece]]:
    """Split a text in pieces at the first space after some letters; nothing is split off if that is near the end."""
    text = "".join(piece for piece, _ in pieces)
    at = text.find(" ", letters)
    if at < 0 or len(text) - at < letters // 4:
        return list(pieces), []
    beginning: list[Piece] = []
    rest: list[Piece] = []
    start = 0
    for piece, share in pieces:
        middle = min(max(at - start, 0), len(piece))
        beginning += [(piece[:middle], share)] if middle else []
        rest += [(piece[middle:], share)] if middle < len(piece) else []
        start += len(piece)
    return beginning, rest


def _marked(pieces: Iterable[Piece]) -> Iterator[Html | str]:
    for piece, share in pieces:
        yield tag("mark", piece, style=f"--share:{share:.2f}") if share else piece


def picture(image: UInt8, alt: str, size: int) -> Html:
    """Return an image as an embedded JPEG, at most `size` pixels wide."""
    thumbnail = Image.fromarray(image)
    if thumbnail.width > size:
        thumbnail = thumbnail.resize((size, size), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    thumbnail.save(file, "JPEG", quality=82 if thumbnail.width > 96 else 92, optimize=True)
    data = base64.b64encode(file.getvalue()).decode()
    return tag("img", src=f"data:image/jpeg;base64,{data}", alt=alt, width=thumbnail.width, height=thumbnail.height)


def kind_of(tables: RunTables, row: int, label: int) -> str:
    """Return the kind of a label in a row: a key of `KINDS`, or "absent"."""
    if tables.observed[row, label] > 0:
        return "given"
    if tables.present[row, label] and tables.observed[row, label] == 0:
        return {1: "right", -1: "wrong", 0: "new"}[int(tables.truth[row, label])]
    return "missed" if tables.missed[row, label] else "absent"


def card(tables: RunTables, row: int, size: int, focus: int | None = None) -> Html:
    """One example: its image, its labels, and confidence bars for the most likely labels.

    `focus` is the label for which the example was chosen; it is highlighted and always has a bar.
    """
    run = tables.run
    order = np.argsort(-np.nan_to_num(tables.confidence[row]), kind="stable")
    kinds = {int(label): kind_of(tables, row, int(label)) for label in order}
    top = order[:_TOP].tolist()
    if focus is not None and focus not in top:
        top[-1] = focus
    image, text = pixels(run, row), marked_text(tables, row, top[0] if focus is None else focus)
    description = "; ".join(
        f"{words}: {', '.join(run.classes[label] for label in kinds if kinds[label] == kind)}"
        for kind, (_, words) in KINDS.items()
        if kind in kinds.values()
    )
    return tag(
        "li",
        None if image is None else picture(image, f"{run.names[row]}. {description}", size),
        tag(
            "div",
            tag("p", run.names[row], class_="file name", title=run.names[row]),
            text,
            tag("ul", *_chips(run, kinds, focus), class_="chips"),
            tag("ol", *(_bar(tables, row, label, kinds[label], label == focus) for label in top), class_="sure"),
            class_="words",
        ),
        class_="card example",
    )


def _chips(run: RunFolder, kinds: dict[int, str], focus: int | None) -> Iterator[Html]:
    for kind, (sign, words) in KINDS.items():
        labels = [label for label, kind_of_label in kinds.items() if kind_of_label == kind]
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


def _bar(tables: RunTables, row: int, label: int, kind: str, focus: bool) -> Html:
    confidence = float(np.nan_to_num(tables.confidence[row, label]))
    fill = tag("span", class_=f"fill {kind}", style=f"width:{100 * confidence:.1f}%")
    return tag(
        "li",
        tag("span", tables.run.classes[label], class_="name"),
        tag("span", fill, class_="bar"),
        tag("span", percent(confidence), class_="value"),
        class_="focus" if focus else None,
    )


def gallery(title: str, note: str, cards: Sequence[Html]) -> Html | None:
    """Return a titled grid of cards; None without cards."""
    if not cards:
        return None
    return tag("div", tag("h3", title), tag("p", note), tag("ul", *cards, class_="gallery"), class_="pictures")


def galleries(tables: RunTables, number: int, size: int) -> list[Html | None]:
    """Pictures of a run's recovered labels and of its errors."""

    def cards(picked: Iterable[tuple[int, int]]) -> list[Html]:
        return [card(tables, row, size, focus) for row, focus in picked]

    drawn = np.random.default_rng(0).permutation(tables.rows)[:number]
    sections = [
        gallery(
            "Random examples",
            "Chosen at random, to give a fair impression.",
            [card(tables, row, size) for row in sorted(drawn.tolist())],
        ),
        *_recovered_galleries(tables, number, cards),
    ]
    if tables.has_truth:
        wrong, missed = int(tables.wrong.sum()), int(tables.missed.sum())
        sections += [
            gallery(
                "Confident mistakes",
                f"{wrong:,} of {count(tables.recovery.checked, 'recovered label')} are wrong. These have the highest "
                "confidence. Different classes first.",
                cards(extremes(tables, tables.wrong, number)),
            ),
            gallery(
                "Missed labels with the lowest confidence",
                f"{missed:,} of {count(tables.recovery.missing, 'missing label')} were not recovered. These have the "
                "lowest confidence. Different classes first.",
                cards(extremes(tables, tables.missed, number, least=True)),
            ),
        ]
    return sections


def _recovered_galleries(
    tables: RunTables, number: int, cards: Callable[[Iterable[tuple[int, int]]], list[Html]]
) -> list[Html | None]:
    """The most and the least confident labels; one gallery if these would show mostly the same."""
    total = tables.recovery.count
    if total <= 2 * number:
        every = extremes(tables, tables.recovered, total)
        once = "" if len(every) == total else " Each example is shown once, with all its labels."
        note = f"{count(total, 'recovered label')}, highest confidence first.{once}"
        return [gallery("All recovered labels", note, cards(every))]
    return [
        gallery(
            "Most confident recovered labels",
            f"The highest confidences of {total:,} recovered labels. Different classes first.",
            cards(extremes(tables, tables.recovered, number)),
        ),
        gallery(
            "Least confident recovered labels",
            f"The lowest confidences of {total:,} recovered labels. Different classes first. If you check labels by "
            "hand, start here.",
            cards(extremes(tables, tables.recovered, number, least=True)),
        ),
    ]


def extremes(tables: RunTables, among: Bool, limit: int, least: bool = False) -> list[tuple[int, int]]:
    """(row, label) of the most (or least) confident entries of a table: each row once, different labels first."""
    rows, labels = np.nonzero(among)
    confidence = tables.confidence[rows, labels]
    order = np.argsort(confidence if least else -confidence, kind="stable")
    chosen: dict[int, int] = {}  # row: index into `rows`
    used_labels: set[int] = set()
    for new_labels_only in (True, False):
        for index in order:
            row, label = int(rows[index]), int(labels[index])
            if len(chosen) == limit:
                break
            if row not in chosen and not (new_labels_only and label in used_labels):
                chosen[row] = int(index)
                used_labels.add(label)
    indices = sorted(chosen.values(), key=lambda index: float(confidence[index]), reverse=not least)
    return [(int(rows[index]), int(labels[index])) for index in indices]


def legend_of_chips(tables: RunTables) -> Html:
    """Legend of the kinds of labels that occur."""
    kinds = ["given", *(["right", "wrong", "missed"] if tables.has_truth else [])]
    if (tables.recovered & (tables.truth == 0)).any() or not tables.has_truth:
        kinds.append("new")
    chips = (
        tag("li", tag("span", KINDS[k][0], aria_hidden="true"), " ", KINDS[k][1], class_=f"chip {k}") for k in kinds
    )
    return tag("ul", *chips, class_="chips key-of-chips")


def evidence_cards(tables: RunTables, rows: Sequence[int], size: int, labels_each: int = 3) -> list[Html]:
    """Image regions that support the most confident labels of some rows; empty without images or a feature map."""
    try:
        network = tables.run.network()
    except InputError:  # a custom backbone, whose code is not in the run folder
        return []
    if not isinstance(network, Classifier):  # trained on features
        return []
    cards = []
    for row in rows:
        image = pixels(tables.run, row)
        if image is None:
            continue
        order = np.argsort(-np.nan_to_num(tables.confidence[row]), kind="stable")
        labels = order[tables.present[row, order]][:labels_each].tolist()
        maps = support_maps(network, image, labels)
        if maps is None:
            return []
        cards.append(_evidence_card(tables, row, image, dict(zip(labels, maps, strict=True)), size))
    return cards


def _evidence_card(tables: RunTables, row: int, image: UInt8, maps: Mapping[int, torch.Tensor], size: int) -> Html:
    run = tables.run
    figures = [tag("figure", picture(image, run.names[row], size), tag("figcaption", "image"))]
    for label in maps:
        kind = kind_of(tables, row, label)
        sign = f"{KINDS[kind][0]} " if kind in KINDS else ""  # a verified negative has none
        alt = f"{run.names[row]}: evidence for {run.classes[label]}"
        words = tag("figcaption", sign, tag("span", run.classes[label], class_="name"), class_=kind)
        figures.append(tag("figure", picture(highlight(image, maps[label]), alt, size), words))
    name = tag("p", run.names[row], class_="file name", title=run.names[row])
    return tag("li", tag("div", *figures, class_="maps"), name, class_="card")
