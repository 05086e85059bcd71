"""The documentation: its code runs, its links lead somewhere, and its defaults and numbers are the real ones."""

import ast
import csv
import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
import torch

from spml.losses import LOSSES, settings_of
from spml.methods import METHODS

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
METHOD_PAGES = sorted((ROOT / "docs" / "methods").glob("*.md"))
REGISTERED = tuple(METHODS)  # before any page adds its example


def called(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(text: str) -> Iterator[tuple[int, str]]:
    """The Python blocks of a page that are to run, each with the number of its first line."""
    for found in re.finditer(r"^```python *(no-run)?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if not found[1]:
            yield text[: found.start(2)].count("\n") + 1, found[2]


WITH_CODE = [page for page in PAGES if any(True for _ in blocks(page.read_text(encoding="utf-8")))]


@pytest.fixture
def _registry() -> Iterator[None]:
    """Methods that an example registers are gone afterwards."""
    methods, losses = dict(METHODS), dict(LOSSES)
    yield
    for now, before in ((METHODS, methods), (LOSSES, losses)):
        now.clear()
        now.update(before)  # type: ignore[arg-type]


@pytest.mark.usefixtures("_registry")
@pytest.mark.parametrize("page", WITH_CODE, ids=called)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    namespace: dict[str, Any] = {"__name__": "__docs__"}
    for line, code in blocks(page.read_text(encoding="utf-8")):
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)  # a traceback names the page's line
    tests: list[Callable[[], None]] = [made for name, made in namespace.items() if name.startswith("test_")]
    for test in tests:  # a page may show a test, and then it must pass
        test()


def test_pages_with_code_are_found() -> None:
    found = {called(page) for page in WITH_CODE}
    assert {"CONTRIBUTING.md", "docs/getting-started.md", "docs/adding-a-method.md", "docs/labels.md"} <= found
    text = "```python\na = 1\n```\n\n```python no-run\nb\n```\n\n```\nc\n```\n\n```python\nd = 2\n```\n"
    assert list(blocks(text)) == [(2, "a = 1\n"), (14, "d = 2\n")]


# Links


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=called)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.is_file(), f"{called(page)} links to {target}, which is not there"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in map(slug, headings), f"{called(page)} links to {target}, which has no such heading"


# Methods and their settings


def tables(text: str, *header: str) -> Iterator[list[list[str]]]:
    """The rows of every table with this header, each a list of cells."""
    first = "| " + " | ".join(header) + " |"
    lines = text.splitlines()
    for start, line in enumerate(lines):
        if line == first:
            rows = []
            for row in lines[start + 2 :]:
                if not row.startswith("|"):
                    break
                rows.append([cell.strip() for cell in row.strip().strip("|").split(" | ")])
            yield rows


def quoted(cell: str) -> str:
    assert re.fullmatch(r"`[^`]+`", cell), f"{cell!r} must stand in backticks"
    return cell[1:-1]


def sections() -> dict[str, str]:
    """The section of every method, by its name."""
    found: dict[str, str] = {}
    for page in METHOD_PAGES:
        for part in re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            heading, _, body = part.partition("\n")
            if heading.startswith("`"):
                name = quoted(heading.strip())
                assert name not in found, f"{name} has two sections"
                found[name] = body
    return found


SECTIONS = sections()


def documented_settings(name: str) -> dict[str, Any]:
    """What a method's section says its settings and defaults are."""
    body = SECTIONS[name]
    settings: dict[str, Any] = {}
    if inherited := re.search(r"^Settings of `([\w-]+)`", body, re.MULTILINE):
        settings |= documented_settings(inherited[1])
    for table in tables(body, "setting", "default", "where"):
        for setting, default, where in table:
            assert where, f"{name}: {setting} has no source"
            settings[quoted(setting)] = ast.literal_eval(quoted(default))
    if not settings:
        assert "\nNo settings.\n" in body, f"{name}: its section has neither settings nor 'No settings.'"
    return settings


def test_every_method_has_a_section_and_every_section_a_method() -> None:
    assert set(SECTIONS) == set(REGISTERED)


@pytest.mark.parametrize("name", REGISTERED)
def test_documented_defaults_are_the_codes(name: str) -> None:
    if name not in SECTIONS:
        pytest.fail(f"the method {name!r} has no section under docs/methods")
    fields = {field.name: field.default for field in dataclasses.fields(METHODS[name].Settings)}
    assert documented_settings(name) == fields


def test_the_index_lists_every_method_once() -> None:
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    (table,) = tables(text, "page", "methods")
    listed = {}
    for link, names in table:
        page = re.search(r"\(methods/([\w-]+\.md)\)", link)
        assert page
        listed |= dict.fromkeys(re.findall(r"`([\w-]+)`", names), page[1])
    assert set(listed) == set(REGISTERED)
    for name, page in listed.items():
        assert f"\n## `{name}`\n" in (ROOT / "docs" / "methods" / page).read_text(encoding="utf-8")


def test_where_a_loss_and_its_method_differ() -> None:
    differing = []
    for name, function in LOSSES.items():
        ours = {field.name: field.default for field in dataclasses.fields(METHODS[name].Settings)}
        for setting, parameter in settings_of(function).items():
            theirs = None if parameter.default is parameter.empty else parameter.default
            if setting in ours and ours[setting] != theirs:
                differing.append((name, setting, theirs, ours[setting]))
    text = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
    (table,) = tables(text, "name", "setting", "loss", "method")
    said = [(quoted(a), quoted(b), ast.literal_eval(quoted(c)), ast.literal_eval(quoted(d))) for a, b, c, d in table]
    assert sorted(said) == sorted(differing)


def test_counts_in_the_changelog() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"**Losses**: {len(LOSSES)} names" in text
    assert f"**Methods**: {len(REGISTERED)}," in text


# Numbers


RESULTS = ("docs/results.md", "README.md")
COLUMNS = {
    "validation mAP": "validation_map",
    "test mAP": "test_map",
    "test mAP, mean ± sd": "test_map",
    "recovery mAP": "recovery_map",
    "mAP on the training rows' true labels": "recovery_map",
    "micro-F1": "test_micro_f1",
    "macro-F1": "test_macro_f1",
}
SETTINGS = {"learning rate": "learning_rate", "batch": "batch_size", "threshold": "f1_threshold"}
VOC = ("method", "seeds", "validation mAP", "test mAP", "recovery mAP", "micro-F1", "macro-F1", "threshold")
FEATURES = ("method", "learning rate", "batch", "validation mAP", "test mAP, mean ± sd", "recovery mAP", *VOC[5:7])
QUOTED = [
    ("docs/results.md", VOC, "voc12-lite2.csv"),
    ("README.md", ("method", "learns from", "test mAP", "mAP on the training rows' true labels"), "voc12-lite2.csv"),
    ("docs/results.md", ("method", "validation mAP", "test mAP", "recovery mAP"), "scenes.csv"),
    ("docs/results.md", FEATURES, "features-voc12.csv"),
    ("docs/results.md", ("method", "learning rate", "batch", "validation mAP", "test mAP"), "features-cub.csv"),
]


@pytest.mark.parametrize(("page", "header", "file"), QUOTED, ids=lambda part: part if isinstance(part, str) else "")
def test_quoted_results_are_the_files(page: str, header: tuple[str, ...], file: str) -> None:
    with (ROOT / "results" / file).open(newline="", encoding="utf-8") as opened:
        every = [row for row in csv.DictReader(opened) if row["chosen"] != "False"]
    text = (ROOT / page).read_text(encoding="utf-8")
    (table,) = tables(text, *header)
    names = [re.findall(r"`([^`]+)`", line[0])[0] for line in table]
    if page == "docs/results.md":
        assert sorted(names) == sorted({row["method"] for row in every})
        for row in every:
            machine = "wo CPU cores" if row["hardware"].endswith(", 2 cores") else row["hardware"]
            assert row["commit"] in text, row["method"]
            assert machine in text, row["method"]
    for name, line in zip(names, table, strict=True):
        rows = [row for row in every if row["method"] == name]
        for title, said in zip(header, line, strict=True):
            if title == "seeds":
                assert len(rows) == int(said), name
            if title in SETTINGS:
                assert {float(row[SETTINGS[title]]) for row in rows} == {float(said)}, (name, title)
            if title in COLUMNS:
                values = [100 * float(row[COLUMNS[title]]) for row in rows]
                places = len(said.split(" ")[0].partition(".")[2])
                spread = " ± " in said or (title.startswith("test mAP") and len(rows) > 1)
                expected = f"{mean(values):.{places}f}" + (f" ± {stdev(values):.{places}f}" if spread else "")
                assert said == expected, (name, title)
