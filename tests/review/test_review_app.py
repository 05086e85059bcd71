"""The interface of the review page, and who may use it."""

import io
import json
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

import spml
from spml.data.stores.images import ImageStore
from spml.errors import InputError
from spml.review.app import ReviewApp, open_decisions
from spml.review.web import Server, static_files
from spml.runs.decisions import Decisions, Question
from spml.runs.folder import open_run
from support.recovery import World
from support.review_server import HOST, TOKEN, review_app

ORIGIN = f"http://{HOST}"


@pytest.fixture
def run(tables):
    return open_run(tables / "on-images")


@pytest.fixture
def app(run, tmp_path):
    with review_app(run, tmp_path / "review.db") as app:
        yield app


@pytest.fixture
def client(app):
    return browser(app)


def browser(app):
    client = TestClient(app.asgi(TOKEN, HOST.__eq__), base_url=f"{ORIGIN}/{TOKEN}/", headers={"host": HOST})
    client.headers["origin"] = ORIGIN
    return client


def answer(client, *items, who="Ada", request="r1"):
    named = [dict(zip(("row", "label", "answer", "seen"), item, strict=True)) for item in items]
    return client.post("api/answers", json={"who": who, "request": request, "items": named})


def test_page_and_its_files_are_served_with_a_strict_policy(client):
    page = client.get("")
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["referrer-policy"] == "no-referrer"
    for name in static_files():
        file = client.get(f"static/{name}")
        assert file.status_code == 200, name
        assert "http://" not in file.text.replace("http://www.w3.org/2000/svg", ""), name
        assert "https://" not in file.text, name
        assert "innerHTML" not in file.text, name
    assert " style=" not in page.text
    assert " onclick=" not in page.text


def test_overview_describes_the_run(client, run):
    overview = client.get("api/overview").json()
    assert overview["classes"] == list(run.classes)
    assert overview["kind"] == "image"
    assert overview["answers"] == 0
    low_to_high = [np.array(each["precision"])[[1, 0, 2]] for each in overview["quality"]]
    assert (np.diff(low_to_high) >= 0).all()


def test_answers_are_saved_with_confidence_and_change_the_lists(client, app):
    row = client.get("api/labels/1").json()["rows"][0]
    reply = answer(client, (row, 1, -1, 0)).json()
    assert [saved[1:4] for saved in reply["saved"]] == [[row, 1, -1]]
    assert reply["progress"]["answers"] == 1
    (saved,) = app.review.decisions.current()
    recovered = app.review.recovered
    shown = recovered.calibration.confidences(recovered.probabilities[[row]], recovered.known[[row]])
    assert saved.confidence == pytest.approx(float(shown[0, 1]), abs=1e-5)
    assert saved.model == "on-images"
    assert row not in client.get("api/labels/1").json()["rows"]
    assert client.get("api/labels/1?shown=answered").json()["rows"] == [row]
    assert row in client.get("api/labels/1?shown=all").json()["rows"]


def test_recovered_labels_can_be_listed_by_themselves(tmp_path):
    run = World(300).run()
    run.__dict__["store"] = ImageStore.from_array(np.zeros((300, 3, 8, 8), np.uint8))
    with review_app(run, tmp_path / "review.db") as app:
        client, recovered = browser(app), app.review.recovered
        label = int(np.bincount(recovered.entries.label[~recovered.entries.observed]).argmax())
        rows = recovered.entries.row[(recovered.entries.label == label) & ~recovered.entries.observed]
        listed = client.get(f"api/labels/{label}?shown=recovered").json()
        assert sorted(listed["rows"]) == rows.tolist() != []
        assert all(listed["recovered"])
        answer(client, (listed["rows"][0], label, 1, 0))
        assert client.get(f"api/labels/{label}?shown=recovered").json()["rows"] == listed["rows"][1:]


def test_rows_come_with_their_first_observed_labels(tmp_path):
    world = World(200)
    world.known[:, 2:] = 1
    run = world.run()
    run.__dict__["store"] = ImageStore.from_array(np.zeros((200, 3, 8, 8), np.uint8))
    with review_app(run, tmp_path / "review.db") as app:
        listed = browser(app).get("api/labels/0").json()
        assert len(listed["rows"]) == len(listed["observed"]) > 0
        for row, observed in zip(listed["rows"], listed["observed"], strict=True):
            assert observed == np.flatnonzero(run.labels.dense([row])[0] > 0)[:4].tolist()


def test_undo_opens_the_question_again(client):
    row = client.get("api/labels/1").json()["rows"][0]
    answer(client, (row, 1, 1, 0))
    reply = client.post("api/undo", json={"who": "Ada", "request": "r2"}).json()
    assert [saved[1:4] for saved in reply["saved"]] == [[row, 1, None]]
    assert row in client.get("api/labels/1").json()["rows"]


def test_two_browsers_see_each_other_and_do_not_overwrite(client, app):
    row = client.get("api/labels/1").json()["rows"][0]
    answer(client, (row, 1, -1, 0), who="Bob", request="b1")
    changes = client.get("api/changes?since=0").json()
    assert [change[3:] for change in changes["decisions"]] == [[-1, "Bob"]]
    reply = answer(client, (row, 1, 1, 0), request="a1").json()
    assert reply["saved"] == []
    assert reply["conflicts"][0][3:] == [-1, "Bob"]
    assert [decision.answer for decision in app.review.decisions.current()] == [-1]


def test_answers_of_another_process_are_taken_up(client, app, run):
    with open_decisions(run, app.review.decisions.path) as other:
        row = int(app.review.recovered.rows[0])
        label = int(np.flatnonzero(run.labels.dense([row])[0] == 0)[0])
        other.record([Question(row, label, 1)], who="Eve")
    changes = client.get("api/changes?since=0").json()
    assert [change[1:] for change in changes["decisions"]] == [[row, label, 1, "Eve"]]
    assert changes["progress"]["answers"] == 1


def test_row_shows_given_label_first(client, run):
    row = client.get("api/rows").json()["rows"][0]
    details = client.get(f"api/rows/{row}").json()
    assert details["name"] == run.names[row]
    first = details["labels"][0]
    assert first["given"] == 1
    assert run.labels.dense([row])[0, first["label"]] == 1


def test_images_are_pixels_only(client, run):
    thumbnail = client.get("thumbnails/0")
    assert thumbnail.headers["content-type"] == "image/webp"
    with Image.open(io.BytesIO(thumbnail.content)) as image:
        assert image.format == "WEBP"
        assert image.size == (16, 16)
    assert client.get("thumbnails/0").content == thumbnail.content
    assert client.get("images/3").headers["content-type"] == "image/webp"
    assert client.get("evidence/0/1").status_code in (200, 404)


@pytest.mark.parametrize(
    "path",
    [
        *("thumbnails/99999", "images/99999", "evidence/99999/0", "evidence/0/99", "api/rows/99999", "api/labels/99"),
        *("thumbnails/-1", "thumbnails/0/../../run.json", "thumbnails/..%2f..%2frun.json", "static/../web.py"),
        *("static/..%2fweb.py", "static/", "run.json", "api/labels/0?order=magic", "api/labels/0?shown=secret", "api"),
    ],
)
def test_other_paths_do_not_exist(client, path):
    assert client.get(path).status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        "no json",
        "[]",
        "[" * 100_000,
        "{}",
        json.dumps({"items": [], "request": "r"}),
        json.dumps({"items": [{"row": 0, "label": 0, "answer": 1, "seen": 0}], "request": "r", "who": "half \ud83d"}),
        *(
            json.dumps({"request": "r", "items": [item]})
            for item in (
                {"row": 0, "label": 0},
                {"row": "0", "label": 0, "answer": 1, "seen": 0},
                {"row": 99999, "label": 0, "answer": 1, "seen": 0},
                {"row": 0, "label": -1, "answer": 1, "seen": 0},
                {"row": 0, "label": 0, "answer": 5, "seen": 0},
                {"row": 0, "label": 0, "answer": True, "seen": 0},
                [0, 0, 1, 0],
            )
        ),
        json.dumps({"items": [{"row": 0, "label": 0, "answer": 1, "seen": 0}], "request": 5}),
    ],
)
def test_wrong_posts_are_refused_with_a_sentence(client, app, body):
    reply = client.post("api/answers", content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    assert reply.json()["error"]
    assert app.review.decisions.since() == []


def test_answer_that_cannot_be_written_is_reported_as_unsaved(client, app, monkeypatch):
    def full(*arguments, **options):
        raise InputError("review.db cannot be written: the disk is full")

    monkeypatch.setattr(Decisions, "record", full)
    row = client.get("api/labels/1").json()["rows"][0]
    reply = answer(client, (row, 1, 1, 0))
    assert reply.status_code == 503
    assert "disk is full" in reply.json()["error"]


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/", {}),
        ("/wrong/", {}),
        ("/wrong/api/overview", {}),
        (f"/{TOKEN}x/api/overview", {}),
        ("/ü/api/overview", {}),
        (f"/{TOKEN}/api/overview", {"host": "evil.example:8733"}),
        (f"/{TOKEN}/api/overview", {"sec-fetch-site": "cross-site"}),
        (f"/{TOKEN}/thumbnails/0", {"sec-fetch-site": "same-site"}),
        (f"/{TOKEN}/api/rows/{'9' * 5000}", {}),
    ],
)
def test_strangers_get_an_empty_reply(app, path, headers):
    client = TestClient(app.asgi(TOKEN, HOST.__eq__), base_url=ORIGIN, headers={"host": HOST} | headers)
    reply = client.get(path)
    assert (reply.status_code, reply.content) == (404, b"")
    assert set(reply.headers) <= {"content-length"}


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"sec-fetch-site": "cross-site"},
        {"content-length": str(10**9)},
        {"content-length": "9" * 5000},
    ],
)
def test_other_sites_cannot_post(client, app, headers):
    row = client.get("api/labels/1").json()["rows"][0]
    body = json.dumps({"who": "Eve", "request": "e", "items": [{"row": row, "label": 1, "answer": 1, "seen": 0}]})
    reply = client.post("api/answers", content=body, headers={"content-type": "application/json"} | headers)
    assert (reply.status_code, reply.content) == (404, b"")
    assert app.review.decisions.since() == []


@pytest.mark.parametrize("since", ["9" * 30, "9" * 5000, "-1", "\u00b2", ""])
def test_changes_since_a_number_that_no_answer_has(client, since):
    assert client.get("api/changes", params={"since": since}).status_code == 400


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH"])
def test_other_methods_are_refused(client, method):
    assert client.request(method, "api/answers").status_code == 404


def test_server_accepts_its_own_names_only():
    server = Server(port=0)
    try:
        assert len(server.token) >= 32
        assert server.address == f"http://127.0.0.1:{server.port}/{server.token}/"
        assert server.accepts(f"127.0.0.1:{server.port}")
        assert server.accepts(f"localhost:{server.port}")
        for host in (f"evil.example:{server.port}", f"192.168.1.5:{server.port}", "127.0.0.1:1", "127.0.0.1", ""):
            assert not server.accepts(host)
        with pytest.raises(InputError, match=f"--port {server.port}"):
            Server(port=server.port)
    finally:
        server.socket.close()


def test_open_server_accepts_addresses_but_no_foreign_names():
    server = Server("0.0.0.0", 0)
    try:
        assert not server.is_local
        assert server.accepts(f"192.168.1.5:{server.port}")
        assert not server.accepts(f"evil.example:{server.port}")
    finally:
        server.socket.close()


def test_run_without_its_images_is_an_error(run, tmp_path):
    gone = replace(run, source={"path": str(tmp_path / "gone"), "options": {}})
    with open_decisions(run, tmp_path / "review.db") as decisions, pytest.raises(InputError, match="gone"):
        ReviewApp(gone, decisions)


def test_run_on_features_shows_the_values_that_say_most(tables, tmp_path):
    run = open_run(tables / "on-features")
    with review_app(run, tmp_path / "review.db") as app:
        client = browser(app)
        assert client.get("api/overview").json()["kind"] == "values"
        row = client.get("api/labels/0").json()["rows"][0]
        (values,) = client.get(f"api/contents/1?whole&rows={row}").json()["contents"]
        features = run.store.batch([row])[0].numpy()
        assert {name for name, _, _ in values} == {f"feature {place}" for place in range(len(features))}
        for name, value, _ in values:
            assert value == pytest.approx(features[int(name.split()[1])], rel=1e-3)
        network = run.network()
        weight = float(network.slope) * network.linear_part()[0][1].numpy()
        mean = network.learners[0].mean.numpy()
        assert sum(part for _, _, part in values) == pytest.approx(weight @ (features - mean), rel=0.01, abs=0.01)
        assert [abs(part) for _, _, part in values] == sorted((abs(part) for _, _, part in values), reverse=True)
        assert client.get(f"thumbnails/{row}").status_code == 404
        assert answer(client, (row, 0, 1, 0)).status_code == 200


def test_run_on_texts_shows_marked_words(tmp_path):
    table = tmp_path / "tickets.csv"
    words = {"billing": "invoice", "login": "password"}
    lines = [f'"please check the <b>{word}</b> number {n}",{label}' for n in range(30) for label, word in words.items()]
    table.write_text("text,label\n" + "\n".join(lines) + "\n")
    spml.train(table, out=tmp_path / "run", base="linear", device="cpu", progress=False)
    run = open_run(tmp_path / "run")
    with review_app(run, tmp_path / "review.db") as app:
        client = browser(app)
        assert client.get("api/overview").json()["kind"] == "text"
        (pieces,) = client.get("api/contents/0?rows=0").json()["contents"]
        assert "".join(piece for piece, _ in pieces) == run.store.texts([0])[0]
        assert max(pieces, key=lambda piece: piece[1])[0] == "<b>invoice</b>"
        (other,) = client.get("api/contents/1?rows=0").json()["contents"]
        assert not any("invoice" in piece and share for piece, share in other)


@pytest.mark.parametrize("query", ["0?rows=99999", "0?rows=-1", "0?rows=1,x", "0?rows=", "9?rows=0", "0"])
def test_contents_of_rows_that_do_not_exist(tables, tmp_path, query):
    with review_app(open_run(tables / "on-features"), tmp_path / "review.db") as app:
        assert browser(app).get(f"api/contents/{query}").status_code == 404


def test_thumbnails_are_made_ahead_and_kept(app, run, tmp_path, monkeypatch):
    app.pictures.make_ahead(range(5)).join(20)
    app.close()
    with review_app(run, tmp_path / "review.db") as second:
        monkeypatch.setattr(type(run.store), "whole", None)  # would fail
        assert second.pictures.thumbnail(4)


def test_ctrl_c_is_the_usual_end(tables, tmp_path):
    arguments = ["review", tables / "on-features", "--decisions", tmp_path / "review.db", "--no-browser", "--port", "0"]
    command = [sys.executable, "-m", "spml", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        first = process.stdout.readline()
        assert first.startswith("Open http://127.0.0.1:"), first
        while process.stdout.readline() != "Press Ctrl-C to stop. Every answer is saved at once.\n":
            pass
        urllib.request.urlopen(first.split()[1], timeout=60).close()  # whoever answers listens to signals
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
    assert "Stopped. 0 answers are saved" in rest
    assert "Interrupted" not in rest
    assert process.returncode == 0
