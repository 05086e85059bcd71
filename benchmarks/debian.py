"""Multi-label texts from Debian's package index: the name and the short description of a package, and its debtags.

`apt-cache dumpavail > FILE` writes the index. Each facet of debtags, such as use:: or works-with::, gives a set with
other labels and another k. `SETS` names them; `load` reads one.
"""

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Facets(NamedTuple):
    facets: tuple[str, ...]
    """Tags that are labels; empty means all."""
    least: int
    """Tags of fewer packages are left out."""
    dependencies: bool = True
    """Whether the text includes the names of the packages it depends on."""
    required: str = ""
    """Only packages that have a tag starting with this."""


SETS = {
    "debian use": Facets(("use",), 60, dependencies=False),
    "debian interface": Facets(("interface",), 60),
    "debian works-with": Facets(("works-with",), 50),
    "debian works-with-format": Facets(("works-with-format",), 30),
    "debian tools": Facets(("use", "interface", "works-with"), 60, required="use::"),
    "debian admin": Facets(("admin",), 30),
    "debian made-of": Facets(("made-of",), 30),
    "debian network": Facets(("network",), 30),
    "debian applications": Facets((), 80, required="x11::application"),
}


def load(index: Path, name: str):
    """Texts and full labels, one row per source package."""
    kind = SETS[name]
    packages = [fields for fields in _packages(index) if {"Tag", "Description"} <= fields.keys()]
    tagged = [(fields, [tag.strip() for tag in fields["Tag"].split(",")]) for fields in packages]
    tagged = [(fields, tags) for fields, tags in tagged if any(tag.startswith(kind.required) for tag in tags)]
    counts = Counter(tag for _, tags in tagged for tag in tags if not kind.facets or tag.split("::")[0] in kind.facets)
    classes = sorted(tag for tag, count in counts.items() if count >= kind.least)
    texts: dict[str, str] = {}
    labels: list[list[bool]] = []
    for fields, tags in tagged:
        source = fields.get("Source", fields["Package"]).split(" ")[0]
        if source in texts or not set(tags) & set(classes):
            continue
        text = f"{fields['Package']} {fields['Description']}"
        if kind.dependencies:
            text += " " + re.sub(r"\([^)]*\)|[,|]", " ", fields.get("Depends", ""))
        texts[source] = text
        labels.append([tag in tags for tag in classes])
    return np.array(list(texts.values()), object), np.array(labels)


def _packages(index: Path):
    for block in index.read_text("utf-8").split("\n\n"):
        fields: dict[str, str] = {}
        last = ""
        for line in block.split("\n"):
            if line.startswith(" ") and last:
                fields[last] += line
            elif match := re.match(r"([A-Za-z0-9-]+): ?(.*)", line):
                last = match[1]
                fields[last] = match[2]
        yield fields
