"""Decisions exported to tables and Label Studio, and imported from it."""

import json

import numpy as np
import pytest
from pyarrow import csv, parquet

from spml.errors import InputError
from spml.recover import export, label_studio_config, recover
from spml.review.exchange import export_decisions, import_label_studio
from spml.runs.decisions import Decisions, Question, Subject
from support.recovery import World

ADDRESSES = {
    "https://example.com/x/a/1.jpg?size=9": 0,
    "/data/local-files/?d=photos/a/2.jpg": 1,
    "/data/local-files/?d=photos/a%2F2.jpg": 1,
    "s3://bucket/b/1.jpg": None,
}
SUBJECT = Subject(["a/1.jpg", "a/2.jpg", 'b/ü ",\n.jpg'], ("cat", "<b>&'", "鳥"))


@pytest.fixture
def decisions(tmp_path):
    with Decisions(tmp_path / "review.db", SUBJECT) as opened:
        opened.record([Question(0, 0, -1, 0.25), Question(2, 1, -1)], who="Ada", model="run")
        opened.record([Question(0, 0, 1, 0.25), Question(1, 2, 0)], who="Bob", model="run")
        yield opened


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_tables_hold_the_decisions_that_count(decisions, tmp_path, suffix):
    assert export_decisions(decisions, tmp_path / f"out{suffix}") == 3
    if suffix == ".csv":
        options = csv.ParseOptions(newlines_in_values=True)
        table = csv.read_csv(tmp_path / "out.csv", parse_options=options)
    else:
        table = parquet.read_table(tmp_path / "out.parquet")
    rows = [(line["name"], line["label"], line["answer"], line["who"]) for line in table.to_pylist()]
    assert rows == [
        ('b/ü ",\n.jpg', "<b>&'", "no", "Ada"),
        ("a/1.jpg", "cat", "yes", "Bob"),
        ("a/2.jpg", "鳥", "unknown", "Bob"),
    ]


def test_history_holds_every_decision(decisions, tmp_path):
    assert export_decisions(decisions, tmp_path / "out.csv", history=True) == 4


def test_label_studio_round_trip(decisions, tmp_path):
    export_decisions(decisions, tmp_path / "tasks.json")
    with Decisions(tmp_path / "second.db", SUBJECT) as second:
        assert import_label_studio(second, tmp_path / "tasks.json") == 2
        np.testing.assert_array_equal(second.labels().dense(), decisions.labels().dense())
        assert {d.who for d in second.current()} == {"Ada", "Bob"}
        assert import_label_studio(second, tmp_path / "tasks.json") == 0


def test_label_studio_tasks_name_nobody_that_it_may_not_know(decisions, tmp_path):
    export_decisions(decisions, tmp_path / "tasks.json", prefix="/data/local-files/?d=photos/")
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    assert tasks[0]["data"] == {"image": "/data/local-files/?d=photos/a/1.jpg", "name": "a/1.jpg"}
    for task in tasks:
        for annotation in task["annotations"]:
            assert set(annotation) == {"result"}  # an unknown "completed_by" would be refused
            for result in annotation["result"]:
                assert (result["type"], result["to_name"]) == ("choices", "image")
                assert result["from_name"] in ("labels", "absent")
                assert set(result["value"]["choices"]) <= set(SUBJECT.classes)


def test_labels_recovered_into_label_studio_come_back(tmp_path):
    """spml recover --format label-studio --prefix …, correct them in Label Studio, spml review --import."""
    recovered = recover(World(60).run())
    export(recovered, tmp_path / "tasks.json", format="label-studio", prefix="/data/local-files/?d=photos/")
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    subject = Subject(recovered.names, recovered.classes)
    with Decisions(tmp_path / "review.db", subject) as decisions:
        assert import_label_studio(decisions, tmp_path / "tasks.json") == 0  # predictions are nobody's answers
        for task in tasks:
            del task["data"]["name"]
            task["annotations"] = [{"completed_by": 1, "result": task.pop("predictions")[0]["result"]}]
        (tmp_path / "export.json").write_text(json.dumps(tasks))
        import_label_studio(decisions, tmp_path / "export.json")
        expected = recovered.present(range(len(subject.names)))
        np.testing.assert_array_equal(decisions.labels().dense()[recovered.rows] > 0, expected[recovered.rows])


def test_import_finds_uploaded_files_and_can_close_the_rest(decisions, tmp_path):
    result = [{"type": "choices", "from_name": "x", "value": {"choices": ["cat"]}}]
    task = {
        "data": {"image": "/data/upload/3/1a2b3c4d-2.jpg"},
        "annotations": [
            {"result": result, "completed_by": 7},
            {"was_cancelled": True, "result": [{"type": "choices"}]},
        ],
    }
    (tmp_path / "tasks.json").write_text(json.dumps([task]))
    assert import_label_studio(decisions, tmp_path / "tasks.json", rest_absent=True) == 3
    assert decisions.labels().dense()[1].tolist() == [1, -1, -1]
    assert {d.who for d in decisions.current() if d.row == 1} == {"7"}


@pytest.mark.parametrize(("address", "row"), ADDRESSES.items())
def test_import_finds_rows_by_the_end_of_an_address(tmp_path, address, row):
    names = ["a/1.jpg", "a/2.jpg", "c/1.jpg"]
    task = {"data": {"image": address}, "annotations": [{"result": [{"type": "choices", "value": {"choices": ["x"]}}]}]}
    (tmp_path / "tasks.json").write_text(json.dumps([task]))
    with Decisions(tmp_path / "review.db", Subject(names, ("x", "y"))) as decisions:
        if row is None:  # two rows have this file name
            with pytest.raises(InputError, match="add its name"):
                import_label_studio(decisions, tmp_path / "tasks.json")
        else:
            import_label_studio(decisions, tmp_path / "tasks.json")
            assert [decision.row for decision in decisions.current()] == [row]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "JSON"),
        ("{}", "list"),
        ("[{}]", "missing required field .data"),
        ('[{"data": {"image": "c.jpg"}}]', "no row is named 'c.jpg'"),
        (
            '[{"data": {"image": "a/1.jpg"}, "annotations": [{"result": [{"type": "choices", "value": '
            '{"choices": ["horse"]}}]}]}]',
            "'horse' is not one of",
        ),
    ],
)
def test_wrong_imports_record_nothing(decisions, tmp_path, content, message):
    (tmp_path / "tasks.json").write_text(content)
    before = len(decisions.since())
    with pytest.raises(InputError, match=message):
        import_label_studio(decisions, tmp_path / "tasks.json")
    assert len(decisions.since()) == before


def test_unknown_ending_is_an_error(decisions, tmp_path):
    with pytest.raises(InputError, match=r"\.xlsx"):
        export_decisions(decisions, tmp_path / "out.xlsx")


def test_configuration_escapes_class_names():
    assert '<Choice value="&lt;b&gt;&amp;\'"/>' in label_studio_config(SUBJECT.classes)


def test_texts_are_exported_as_texts_and_found_by_their_text(tmp_path):
    subject, texts = Subject(["1", "2", "3"], ("billing", "login")), ["an <b>invoice</b>", "twice", "twice"]
    with Decisions(tmp_path / "one.db", subject) as decisions:
        decisions.record([Question(0, 0, 1), Question(0, 1, -1)], who="Ada")
        export_decisions(decisions, tmp_path / "tasks.json", texts=texts)
        (task,) = json.loads((tmp_path / "tasks.json").read_text())
    assert task["data"]["text"] == "an <b>invoice</b>"
    assert {result["to_name"] for result in task["annotations"][0]["result"]} == {"text"}
    choices = [{"from_name": "topic", "to_name": "text", "type": "choices", "value": {"choices": ["login"]}}]
    exported = [{"id": 7, "data": {"text": texts[0]}, "annotations": [{"id": 3, "completed_by": 1, "result": choices}]}]
    (tmp_path / "export.json").write_text(json.dumps(exported))
    with Decisions(tmp_path / "two.db", subject) as decisions:
        assert import_label_studio(decisions, tmp_path / "export.json", texts=texts) == 1
        np.testing.assert_array_equal(decisions.labels().dense(), [[0, 1], [0, 0], [0, 0]])
        exported[0]["data"]["text"] = "twice"
        (tmp_path / "export.json").write_text(json.dumps(exported))
        with pytest.raises(InputError, match="add its name"):
            import_label_studio(decisions, tmp_path / "export.json", texts=texts)
    assert '<Text name="text" value="$text"/>' in label_studio_config(["billing"], texts=True)
