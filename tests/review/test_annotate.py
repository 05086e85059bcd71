"""Annotation by yes/no questions: the draw, the answers, the table, and the page."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from spml.data import open_data
from spml.errors import InputError
from spml.review.annotate import AnnotateApp, Annotation, find_images, read_classes, write_table
from spml.runs.decisions import Decisions, Subject
from support.command import run as run_command
from support.review_server import HOST, TOKEN, serving

CLASSES = ("cat", "<b>dog</b>", "bird", "horse")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture
def photos(tmp_path):
    for number in range(6):
        path = tmp_path / "photos" / f"{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), (40 * number, 90, 200)).save(path)
    return find_images(tmp_path / "photos")


@pytest.fixture
def decisions(photos, tmp_path):
    names = [path.relative_to(tmp_path / "photos").as_posix() for path in photos]
    with Decisions(tmp_path / "labels.db", Subject(names, CLASSES)) as opened:
        yield opened


def annotate(annotation, truth):
    """Answer everything by the truth, a list of sets of labels per row."""
    number = 0
    while (question := annotation.question("browser")) is not None:
        number += 1
        answer = 1 if question["label"] in truth[question["row"]] else -1
        annotation.answer(question, answer, who="Ada", request=str(number))
    return number


def test_questions_stop_at_the_first_yes_and_never_repeat(decisions):
    truth = [{0}, {1, 2}, set(), {3}, {0, 1, 2, 3}, {2}]
    annotation = Annotation(decisions, seed=1)
    annotate(annotation, truth)
    known = decisions.labels().dense()
    for row, labels in enumerate(truth):
        assert (known[row] > 0).sum() == (1 if labels else 0)
        assert {*np.flatnonzero(known[row] > 0)} <= labels
        assert not {*np.flatnonzero(known[row] < 0)} & labels
    assert (known[2] < 0).all()
    assert annotation.progress() == {"rows": 6, "done": 6, "labelled": 5, "answers": int((known != 0).sum())}


def test_single_positive_is_uniform_among_the_labels_present(tmp_path):
    rows = 3000
    with Decisions(tmp_path / "labels.db", Subject([str(row) for row in range(rows)], CLASSES)) as decisions:
        annotation = Annotation(decisions, seed=0)
        first, picked = [], []
        for row in range(rows):
            asked: dict[int, int] = {}
            while 1 not in asked.values():
                annotation._asked[row] = asked
                label = annotation._draw_label(row)["label"]
                first += [label] if not asked else []
                assert label not in asked
                asked[label] = 1 if label in (0, 1, 3) else -1
            picked.append(next(label for label, answer in asked.items() if answer == 1))
    for drawn, expected in ((first, 1 / 4), (picked, 1 / 3)):
        share = np.bincount(drawn, minlength=4) / rows
        wanted = np.where(share > 0, expected, 0)
        np.testing.assert_allclose(share, wanted, atol=4 * np.sqrt(expected * (1 - expected) / rows))


def test_draws_are_recorded(decisions):
    annotate(Annotation(decisions, seed=0), [{0}] * 6)
    for decision in decisions.current():
        draw = json.loads(decision.draw)
        assert draw["rule"] == "uniform"
        assert draw["probability"] == pytest.approx(1 / draw["among"], abs=1e-6)


def test_model_asks_about_likely_classes_first_and_records_the_probability(decisions):
    likely = np.array([0.01, 0.02, 0.9, 0.05])
    annotation = Annotation(decisions, seed=0, likely=lambda row: likely, model="run")
    draws = [annotation._draw_label(0) for _ in range(400)]
    chance = 0.2 / 4 + 0.8 * likely / likely.sum()
    share = np.bincount([draw["label"] for draw in draws], minlength=4) / 400
    np.testing.assert_allclose(share, chance, atol=0.1)
    for question in draws:
        assert question["draw"]["rule"] == "model"
        assert question["draw"]["probability"] == pytest.approx(chance[question["label"]], abs=1e-6)


def test_question_stays_until_it_is_answered_and_returns_if_undone(decisions):
    annotation = Annotation(decisions, seed=0)
    asked = annotation.question("ada")
    assert all(annotation.question("ada") == asked for _ in range(20))  # the page was loaded again
    annotation.answer(asked, -1, who="Ada", request="1")
    following = annotation.question("ada")
    assert (following["row"], following["label"] != asked["label"]) == (asked["row"], True)
    annotation.undo(who="Ada", request="2")
    assert annotation.question("ada") == asked


def test_two_browsers_get_different_images_and_finished_ones_are_left_alone(decisions):
    annotation = Annotation(decisions, seed=0)
    ada, bob = annotation.question("ada"), annotation.question("bob")
    assert ada["row"] != bob["row"]
    assert annotation.question("ada")["row"] == ada["row"]
    assert annotation.answer(ada, 1, who="Ada", request="1")
    assert annotation.answer(ada, -1, who="Bob", request="2") == []
    assert len(annotation.answer(ada, 1, who="Ada", request="1")) == 1  # a repeated request
    assert len(decisions.since()) == 1


def test_table_opens_as_a_data_set_with_verified_negatives(decisions, photos, tmp_path):
    truth = [{0}, {1}, {2}, {3}, {0, 1}, {2}]
    annotate(Annotation(decisions, seed=3), truth)
    assert write_table(decisions, photos, tmp_path / "labels.csv") == 6
    data = open_data(tmp_path / "labels.csv", size=16)
    assert data.classes == CLASSES
    assert len(data) == 6
    known = decisions.labels().dense()
    found = {name.rpartition("/")[2]: row.tolist() for name, row in zip(data.names, data.labels.dense(), strict=True)}
    assert found == {path.name: known[row].tolist() for row, path in enumerate(photos)}
    assert data.store.batch([0]).shape == (1, 3, 16, 16)


def client_of(app):
    client = TestClient(app.asgi(TOKEN, HOST.__eq__), base_url=f"http://{HOST}/{TOKEN}/", headers={"host": HOST})
    client.headers["origin"] = f"http://{HOST}"
    return client


def test_interface_asks_saves_and_undoes(decisions, photos):
    client = client_of(AnnotateApp(Annotation(decisions, seed=0), photos, "Ada"))
    asked = client.get("api/question?client=c").json()["question"]
    assert client.get(f"images/{asked['row']}").headers["content-type"] == "image/webp"
    assert client.get("images/6").status_code == 404
    body = {"who": "Ada", "client": "c", "request": "1", "question": asked, "answer": -1}
    after = client.post("api/answers", json=body).json()
    assert after["question"]["row"] == asked["row"]
    assert after["question"]["label"] != asked["label"]
    undone = client.post("api/undo", json={"who": "Ada", "client": "c", "request": "2"}).json()
    assert undone["progress"]["answers"] == 0
    for wrong in ({"answer": 7}, {"question": None}, {"question": {**asked, "row": 99}}, {"client": 5}):
        assert client.post("api/answers", json={**body, "request": "3", **wrong}).status_code == 400


@pytest.mark.parametrize(
    ("content", "message"), [("cat\ncat\n", "twice"), ("cat\n", "at least two"), ("cat\nimage\n", "cannot be called")]
)
def test_wrong_class_files_are_errors(tmp_path, content, message):
    (tmp_path / "classes.txt").write_text(content)
    with pytest.raises(InputError, match=message):
        read_classes(tmp_path / "classes.txt")


@pytest.mark.parametrize(
    "name", ["text", "label", "Labels", "class", "id", "split", "key", "index", "Unnamed: 0", "a\tb", "a\0"]
)
def test_classes_that_the_table_cannot_hold_are_errors(name, tmp_path):
    (tmp_path / "classes.txt").write_text(f"cat\n{name}\n")
    with pytest.raises(InputError, match=r"classes\.txt: .*(cannot be called|control character)"):
        read_classes(tmp_path / "classes.txt")


def test_classes_named_like_other_columns_are_read_back(photos, tmp_path):
    (tmp_path / "classes.txt").write_text("photo\nImg\npath\n=1\n'quoted\na,b\n12\nde\u200dmo\n")
    classes = read_classes(tmp_path / "classes.txt")
    names = [path.relative_to(tmp_path / "photos").as_posix() for path in photos]
    with Decisions(tmp_path / "labels.db", Subject(names, classes)) as decisions:
        annotate(Annotation(decisions, seed=0), [{row % len(classes)} for row in range(len(photos))])
        write_table(decisions, photos, tmp_path / "labels.csv")
        expected = decisions.labels().dense()
    data = open_data(tmp_path / "labels.csv", size=16)
    asked = [column for column in range(len(classes)) if expected[:, column].any()]
    found = {name.rpartition("/")[2]: row for name, row in zip(data.names, data.labels.dense(), strict=True)}
    for row, path in enumerate(photos):
        for column in asked:
            assert found[path.name][data.classes.index(classes[column])] == expected[row, column]


def test_wrong_commands_are_errors(tmp_path, photos, monkeypatch, capsys):
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    (tmp_path / "mine.csv").write_text("my data")

    def command(images, out):
        arguments = ("annotate", images, "--classes", tmp_path / "classes.txt", "--out", tmp_path / out)
        return run_command(*arguments, monkeypatch=monkeypatch, capsys=capsys)

    for images, out, message in (
        ("photos", "x.parquet", ".csv"),
        ("photos", "mine.csv", "already exists"),
        ("nowhere", "x.csv", "not a folder"),
    ):
        code, output = command(tmp_path / images, out)
        assert code == 2
        assert message in output
    assert (tmp_path / "mine.csv").read_text() == "my data"


@pytest.mark.skipif(CHROMIUM is None, reason="needs the browser Chromium")
def test_page_is_answered_by_keyboard(decisions, photos):
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    app = AnnotateApp(Annotation(decisions, seed=0), photos, "Ada")
    with serving(app.asgi) as address, playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(address)
        page.wait_for_selector("body[data-ready]")
        for number, key in enumerate("nzyyyyyy"):
            before = page.inner_text("#progress") + page.inner_text("#question")
            page.keyboard.press(key)
            page.wait_for_function(
                "before => document.querySelector('#progress').innerText + "
                "document.querySelector('#question').innerText !== before",
                arg=before,
            )
            assert number or "1 answer" in page.inner_text("#progress")
        assert page.inner_text("#question") == "Finished"
        browser.close()
    assert problems == []
    assert (decisions.labels().dense() > 0).sum() == 6
    app.close()
