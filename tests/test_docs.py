"""The documentation: code blocks run, links resolve, and quoted defaults and results match code and files."""

import ast
import csv
import dataclasses
import importlib
import inspect
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
import torch
import typer.main

import spml
from spml.bench.protocols import load_protocol
from spml.bench.significance import holm, paired_test
from spml.cli import app as command_line
from spml.losses import LOSSES
from spml.losses.module import settings_of
from spml.methods import METHODS
from spml.type_checks import type_name
from support.pictures import picture

ROOT = Path(__file__).resolve().parents[1]
GENERATED = {ROOT / "docs" / "_build", ROOT / "docs" / "api"}
PAGES = sorted(
    [ROOT / "CONTRIBUTING.md", *(page for page in (ROOT / "docs").rglob("*.md") if not GENERATED & set(page.parents))]
)
METHOD_PAGES = sorted((ROOT / "docs" / "methods").glob("*.md"))
ALL_PAGES = [*PAGES, ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "results" / "README.md"]
REGISTERED = tuple(METHODS)  # before any page adds its example


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(text: str) -> Iterator[tuple[int, str]]:
    """Python blocks of a page, except those tagged `no-run`, each with the number of its first line."""
    for found in re.finditer(r"^```python *(no-run)?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if not found[1]:
            yield text[: found.start(2)].count("\n") + 1, found[2]


WITH_CODE = [page for page in PAGES if any(True for _ in blocks(page.read_text(encoding="utf-8")))]


@pytest.fixture
def _registry() -> Iterator[None]:
    """Remove methods that an example registers."""
    methods, losses = dict(METHODS), dict(LOSSES)
    yield
    for now, before in ((METHODS, methods), (LOSSES, losses)):
        now.clear()
        now.update(before)  # type: ignore[arg-type]


@pytest.mark.usefixtures("_registry")
@pytest.mark.parametrize("page", WITH_CODE, ids=relative)
def test_documentation_code_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    namespace: dict[str, Any] = {"__name__": "__docs__"}
    for line, code in blocks(page.read_text(encoding="utf-8")):
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)  # a traceback names the page's line
    tests: list[Callable[[], None]] = [value for name, value in namespace.items() if name.startswith("test_")]
    for test in tests:  # a test shown on a page must pass
        test()


def test_readme_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("cat", "dog", "sofa")):
        for shade in range(2):
            picture(tmp_path / "photos" / name / f"{shade}.jpg", 50 * number + shade)
    picture(tmp_path / "new" / "1.jpg", 7)
    namespace: dict[str, Any] = {}
    ((_, code),) = blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    exec(code, namespace)
    assert namespace["probabilities"].shape == (1, 3)
    assert namespace["labels"].present([0]).any()


def test_pages_with_code_are_found() -> None:
    found = {relative(page) for page in WITH_CODE}
    assert {"CONTRIBUTING.md", "docs/getting-started.md", "docs/adding-a-method.md", "docs/labels.md"} <= found
    text = "```python\na = 1\n```\n\n```python no-run\nb\n```\n\n```\nc\n```\n\n```python\nd = 2\n```\n"
    assert list(blocks(text)) == [(2, "a = 1\n"), (14, "d = 2\n")]


# Language and links


@pytest.mark.parametrize("page", ALL_PAGES, ids=relative)
def test_plain_english(page: Path) -> None:
    unclear = (
        r"(labels?|positives?|values?|class|one) an? (row|class|entry|image|scene|epoch)\b|goes on where|first look"
    )
    unclear += r"|\bis (told|said|refused)\b|not named|named label|for want of"
    assert not re.search(rf"\b({unclear})", page.read_text(encoding="utf-8"))


def slug(heading: str) -> str:
    """GitHub's anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", ALL_PAGES, ids=relative)
def test_links_resolve(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.is_file(), f"{relative(page)} links to {target}, which is not there"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in map(slug, headings), f"{relative(page)} links to {target}, which has no such heading"


# Commands


def shell_commands(text: str) -> Iterator[list[str]]:
    """The `spml` commands in the plain code blocks of a page, as lists of words."""
    for block in re.findall(r"^```(?:shell|bash)?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("spml "):
                yield shlex.split(line.replace("…", ""), comments=True)


@pytest.mark.parametrize("page", ALL_PAGES, ids=relative)
def test_documented_commands_have_these_options(page: Path) -> None:
    commands = typer.main.get_command(command_line).commands  # type: ignore[attr-defined]
    for _, name, *words in shell_commands(page.read_text(encoding="utf-8")):
        if name.startswith("-") or name == "COMMAND":
            continue
        assert name in commands, f"{relative(page)}: spml {name}"
        known = {option for part in commands[name].params for option in (*part.opts, *part.secondary_opts)}
        unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]
        assert not unknown, f"{relative(page)}: spml {name} has no {unknown}"


def test_shell_commands_are_found() -> None:
    text = "```\nspml train a \\\n    --out b  # comment\nls\n```\n\n```python\nspml = 1\n```\n"
    assert list(shell_commands(text)) == [["spml", "train", "a", "--out", "b"]]


# Methods and their settings


def tables(text: str, *header: str) -> Iterator[list[list[str]]]:
    """Rows of every table with this header, as lists of cells."""
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
    assert re.fullmatch(r"`[^`]+`", cell), f"{cell!r} must be in backticks"
    return cell[1:-1]


def sections() -> dict[str, str]:
    """Section of every method, by method name."""
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
    """Settings and defaults as documented in a method's section."""
    body = SECTIONS[name]
    settings: dict[str, Any] = {}
    if inherited := re.search(r"^Settings of `([\w-]+)`", body, re.MULTILINE):
        settings |= documented_settings(inherited[1])
    for table in tables(body, "setting", "default", "range", "where"):
        for setting, default, limits, where in table:
            assert where, f"{name}: {setting} has no source"
            assert limits == type_name(METHODS[name].setting_types()[quoted(setting)])
            settings[quoted(setting)] = ast.literal_eval(quoted(default))
    if not settings:
        assert "\nNo settings.\n" in body, f"{name}: its section has neither settings nor 'No settings.'"
    return settings


def test_every_method_has_one_section() -> None:
    assert set(SECTIONS) == set(REGISTERED)


@pytest.mark.parametrize("name", REGISTERED)
def test_documented_defaults_match_code(name: str) -> None:
    if name not in SECTIONS:
        pytest.fail(f"the method {name!r} has no section under docs/methods")
    fields = {field.name: field.default for field in dataclasses.fields(METHODS[name].Settings)}
    assert documented_settings(name) == fields


def test_methods_table_links_every_method_once() -> None:
    text = (ROOT / "docs" / "methods" / "README.md").read_text(encoding="utf-8")
    (table,) = tables(text, "method", "paper", "what it does", "needs")
    links = [re.fullmatch(r"\[`([\w-]+)`\]\([\w-]+\.md#([\w-]+)\)", row[0]) for row in table]
    assert all(link and link[1] == link[2] for link in links)
    assert sorted(link[1] for link in links if link) == sorted(REGISTERED)


def test_documented_differences_between_losses_and_methods() -> None:
    differing = []
    for name, function in LOSSES.items():
        ours = {field.name: field.default for field in dataclasses.fields(METHODS[name].Settings)}
        for setting, parameter in settings_of(function).items():
            theirs = None if parameter.default is parameter.empty else parameter.default
            if setting in ours and ours[setting] != theirs:
                differing.append((name, setting, theirs, ours[setting]))
    text = (ROOT / "docs" / "losses.md").read_text(encoding="utf-8")
    (table,) = tables(text, "name", "setting", "loss", "method")
    documented = [
        (quoted(a), quoted(b), ast.literal_eval(quoted(c)), ast.literal_eval(quoted(d))) for a, b, c, d in table
    ]
    assert sorted(documented) == sorted(differing)


def test_documented_exceptions_to_the_papers_defaults_match_code() -> None:
    text = (ROOT / "docs" / "methods" / "README.md").read_text(encoding="utf-8")
    (table,) = tables(text, "methods", "setting", "default", "the paper's")
    for names, setting, default, papers in table:
        having = {name for name in REGISTERED if quoted(setting) in METHODS[name].setting_types()}
        listed = set(re.findall(r"`([\w-]+)`", names))
        assert {name for name in having if getattr(METHODS[name]().settings, quoted(setting))} == listed
        assert (quoted(default), quoted(papers)) == ("True", "False")
        of_losses = [settings_of(LOSSES[name]) for name in listed & set(LOSSES)]
        assert {each[quoted(setting)].default for each in of_losses if quoted(setting) in each} == {False}


def documented_names() -> set[str]:
    """Names on the API page, from its autosummary directives."""
    found, module = set(), ""
    for line in (ROOT / "docs" / "api.md").read_text(encoding="utf-8").splitlines():
        if line.startswith(".. currentmodule:: "):
            module = line.split()[-1]
        elif re.fullmatch(r"   \w+", line):
            found.add(f"{module}.{line.strip()}")
    return found


def test_api_page_lists_public_names() -> None:
    documented = documented_names()
    assert {name for name in documented if name.count(".") == 1} == {f"spml.{name}" for name in spml.__all__}
    assert {f"spml.metrics.{name}" for name in spml.metrics.__all__} <= documented
    for name in documented:
        module, _, attribute = name.rpartition(".")
        assert inspect.getdoc(getattr(importlib.import_module(module), attribute)), name


def test_contributing_lists_import_layers() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = pyproject["tool"]["importlinter"]["contracts"][0]["layers"]
    (table,) = tables((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), "layer", "contains")
    listed = [sorted(re.findall(r"`(\w+)`", row[0])) for row in table]
    assert listed == [sorted(re.findall(r"\w+", layer)) for layer in layers]


# README


def sentences(text: str) -> Iterator[str]:
    """Sentences of the running text, without code blocks, tables, headings and link targets."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for paragraph in re.split(r"\n\s*\n", text):
        if not paragraph.lstrip().startswith(("|", "#")):
            yield from re.split(r"(?<=[.!?:])\s+", paragraph.strip())


def test_readme_sentences_are_short() -> None:
    found = list(sentences((ROOT / "README.md").read_text(encoding="utf-8")))
    assert len(found) > 20
    assert [sentence for sentence in found if len(sentence.split()) > 30] == []


def test_readme_counts_methods() -> None:
    assert f"`spml` implements {len(REGISTERED)} methods," in (ROOT / "README.md").read_text(encoding="utf-8")


# Results


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


def own_head(entry: str) -> str:
    needs = METHODS[load_protocol("voc12-lite2").methods[entry].get("method", entry)].needs
    return needs.pretrained_head or needs.head


def has_own_head(row: dict[str, str]) -> bool:
    """Whether a run used the head of its method; not so if `--head` gave it another one."""
    return row["bench"] != "voc12-lite2" or row["head"] == own_head(row["method"])


def quoted_mean(rows: list[dict[str, str]]) -> str:
    values = [100 * float(row["test_map"]) for row in rows]
    return f"{mean(values):.2f} ± {stdev(values):.2f}"


def test_quoted_heads_match_file() -> None:
    with (ROOT / "results" / "voc12-lite2.csv").open(newline="", encoding="utf-8") as opened:
        every = list(csv.DictReader(opened))
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    (table,) = tables(text, "method", "own head", "test mAP, own head", "test mAP, attention head", "gain")
    names = [quoted(line[0].rstrip("*")) for line in table]
    assert sorted(names) == sorted({row["method"] for row in every if row["head"] == "attention"})
    for name, (_, head, own, attention, gain) in zip(names, table, strict=True):
        assert head == own_head(name)
        both = [[row for row in every if (row["method"], row["head"]) == (name, each)] for each in (head, "attention")]
        assert [own, attention] == [quoted_mean(rows) for rows in both]
        means = [100 * mean(float(row["test_map"]) for row in rows) for rows in both]
        assert gain == ("–" if head == "attention" else f"{means[1] - means[0]:+.2f}")


@pytest.mark.parametrize(
    ("study", "values"), [("label-budget", "0.1 0.2 0.4 0.6 0.8 1.0"), ("bias-by-class", "−2 −1 0 1 2")]
)
def test_quoted_studies_match_file(study: str, values: str) -> None:
    with (ROOT / "results" / "studies-voc12-features.csv").open(newline="", encoding="utf-8") as opened:
        every = [row for row in csv.DictReader(opened) if row["bench"] == study]
    (table,) = tables((ROOT / "docs" / "results.md").read_text(encoding="utf-8"), "method", *values.split())
    found = {(row["method"], float(row["value"])): f"{100 * float(row['test_map']):.1f}" for row in every}
    assert {quoted(line[0].rstrip("*")) for line in table} == {row["method"] for row in every}
    for name, *cells in table:
        for value, cell in zip(values.replace("−", "-").split(), cells, strict=True):
            assert cell == found[quoted(name.rstrip("*")), float(value)]


def test_quoted_review_study_matches_file() -> None:
    with (ROOT / "results" / "review-study.csv").open(newline="", encoding="utf-8") as opened:
        every = list(csv.DictReader(opened))
    text, header = (ROOT / "docs" / "review.md").read_text(encoding="utf-8"), ("data", "order of questions", "answers")
    (table,) = tables(text, *header, "test mAP", "precision", "recall")
    data = ""
    for name, order, answers, *cells in table:
        data = {"VOC 2012": "voc12", "scenes": "scenes", "": data}[name]
        asked = (order.replace("none", "random"), answers.replace(",", ""))
        rows = [row for row in every if row["data"] == data and (row["order"], row["answers"]) == asked]
        measures = ("test_map", "precision", "recall")
        assert cells == [f"{100 * mean(float(row[each]) for row in rows):.1f}" for each in measures], (
            name,
            order,
            answers,
        )
    assert {f"commit {row['commit']})" in text for row in every} == {True}


@pytest.mark.parametrize(("page", "header", "file"), QUOTED, ids=lambda part: part if isinstance(part, str) else "")
def test_quoted_results_match_files(page: str, header: tuple[str, ...], file: str) -> None:
    with (ROOT / "results" / file).open(newline="", encoding="utf-8") as opened:
        every = [row for row in csv.DictReader(opened) if row["chosen"] != "False" and has_own_head(row)]
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
        for title, quote in zip(header, line, strict=True):
            if title == "seeds":
                assert len(rows) == int(quote), name
            if title in SETTINGS:
                assert {float(row[SETTINGS[title]]) for row in rows} == {float(quote)}, (name, title)
            if title in COLUMNS:
                values = [100 * float(row[COLUMNS[title]]) for row in rows]
                places = len(quote.split(" ")[0].partition(".")[2])
                spread = " ± " in quote or (title.startswith("test mAP") and len(rows) > 1)
                expected = f"{mean(values):.{places}f}" + (f" ± {stdev(values):.{places}f}" if spread else "")
                assert quote == expected, (name, title)


TESTED = [
    ("## The scenes of the quickstart", "scenes.csv"),
    ("## Linear on VOC 2012 features", "features-voc12.csv"),
    ("## Linear on CUB features", "features-cub.csv"),
]


@pytest.mark.parametrize(("heading", "file"), TESTED)
def test_quoted_p_values_are_corrected(heading: str, file: str) -> None:
    with (ROOT / "results" / file).open(newline="", encoding="utf-8") as opened:
        every = [row for row in csv.DictReader(opened) if row["chosen"] != "False"]
    scores: dict[str, dict[int, float]] = {}
    for row in every:
        scores.setdefault(row["method"], {})[int(row["seed"])] = 100 * float(row["test_map"])
    p = {name: test.p for name in scores if (test := paired_test(scores[name], scores["auto"])) and name != "auto"}
    tested = [name for name in p if p[name] is not None]
    corrected = dict(zip(tested, holm([p[name] for name in tested]), strict=True))
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    section = page[page.index(heading) :].partition("\n## ")[0]
    quotes = re.findall(r"`([a-z0-9-]+)` \(\$p\$ = ([0-9.]+)\)", section)
    assert len(quotes) == section.count("$p$")
    for name, quote in quotes:
        assert quote == f"{corrected[name]:.2g}", name
    (line,) = re.findall(r"Significantly different from `auto`: (.*)", section)
    assert f"corrected for {len(corrected)} comparisons by Holm's method" in line
    significant = {name for name in corrected if corrected[name] < 0.05}
    listed = {name for name, _ in re.findall(r"`([a-z0-9-]+)` \(\$p\$ = ([0-9.]+)\)", line)}
    assert significant == (set(corrected) - listed if line.startswith("all but ") else listed)


def test_counts_of_methods_match_the_protocols_and_result_files() -> None:
    page, results = ((ROOT / path).read_text(encoding="utf-8") for path in ("docs/benchmark.md", "results/README.md"))
    for name in ("voc12-lite2", "scenes", "features"):
        count = len(load_protocol(name).methods)
        all_methods = f" of the {len(REGISTERED)}" if name == "voc12-lite2" else ""
        assert f"| `{name}` | ours: {count}{all_methods} methods" in page
        header = (
            (ROOT / "src/spml/bench/files/protocols" / f"{name}.toml").read_text(encoding="utf-8").partition("\n")[0]
        )
        assert f" {count} methods" in header
    assert f"# {len(load_protocol('scenes').methods)} methods on built-in data" in page
    for name in ("scenes", "features-cub", "features-voc12", "voc12-lite2"):
        with (ROOT / "results" / f"{name}.csv").open(newline="", encoding="utf-8") as opened:
            count = len({row["method"] for row in csv.DictReader(opened)})
        assert f"| `{name}.csv` | {count} methods, " in results


def test_every_result_file_states_its_draw() -> None:
    (table,) = tables((ROOT / "results" / "README.md").read_text(encoding="utf-8"), "file", "what", "single positives")
    draws = {quoted(file): draw for file, _, draw in table}
    assert sorted(draws) == sorted(file.name for file in (ROOT / "results").glob("*.csv"))
    for page, _, file in QUOTED:
        if "earlier draw" in draws[file]:
            text = (ROOT / page).read_text(encoding="utf-8")
            assert "results.md#the-earlier-voc-draw" in text or "(#the-earlier-voc-draw)" in text, (page, file)


@pytest.mark.parametrize(
    ("heading", "file", "without", "sets"),
    [("Tables, features and texts", "tables.csv", 1, 9), ("Small image sets on a CPU", "small-images.csv", 3, 3)],
)
def test_tables_of_means_match_files(heading: str, file: str, without: int, sets: int) -> None:
    scores: dict[tuple[str, str], list[float]] = {}
    with (ROOT / "results" / file).open(newline="", encoding="utf-8") as opened:
        for row in csv.DictReader(opened):
            scores.setdefault((row["data"], row["method"]), []).append(100 * float(row["test_map"]))
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    _, _, section = text.partition(f"## {heading}\n")
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    names = [cell.strip("`*").replace("scikit-learn ", "sklearn ").replace("one-vs-rest", "ovr") for cell in lines[0]]
    body = lines[2 : 2 + sets]
    assert len({row[0] for row in body}) == sets
    for row in body:
        for name, cell in zip(names[without:], row[without:], strict=True):
            found = scores[row[0], name]
            assert float(cell.strip("*")) == pytest.approx(sum(found) / len(found), abs=0.051), (row[0], name)
