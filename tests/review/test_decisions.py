"""The database of decisions: append-only, shared, and safe against kills, full disks and other data."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from spml.errors import InputError
from spml.labels import Labels
from spml.runs.decisions import Decisions, Question, Subject, read_decisions

SUBJECT = Subject([f"{row}.jpg" for row in range(50)], ("cat", "dog", "<b>"))


@pytest.fixture
def decisions(tmp_path):
    with Decisions(tmp_path / "review.db", SUBJECT) as opened:
        yield opened


def test_answers_become_verified_labels(decisions):
    decisions.record([Question(0, 0, 1, 0.7), Question(1, 2, -1), Question(2, 1, 0)], who="Ada", model="run 1")
    expected = np.zeros((50, 3), np.int8)
    expected[0, 0], expected[1, 2] = 1, -1
    np.testing.assert_array_equal(decisions.labels().dense(), expected)
    first = decisions.current()[0]
    assert (first.row, first.label, first.answer, first.who, first.confidence, first.model) == (
        *(0, 0, 1, "Ada"),
        *(0.7, "run 1"),
    )
    assert first.at.endswith("+00:00")
    assert [decision.word for decision in decisions.current()] == ["yes", "no", "unknown"]


def test_latest_decision_counts_and_all_are_kept(decisions):
    for answer in (1, -1, 0, 1):
        decisions.record([Question(3, 1, answer)], who="Ada")
    assert [decision.answer for decision in decisions.since()] == [1, -1, 0, 1]
    assert [decision.answer for decision in decisions.current()] == [1]


def test_undo_adds_decisions_and_repeats_further_back(decisions):
    decisions.record([Question(0, 0, 1)], who="Ada")
    decisions.record([Question(0, 0, -1), Question(1, 1, 1)], who="Ada")  # one action with two decisions
    assert [(d.row, d.answer) for d in decisions.undo("Ada").saved] == [(0, 1), (1, None)]
    assert [(d.row, d.answer) for d in decisions.current()] == [(0, 1)]
    assert [(d.row, d.answer) for d in decisions.undo("Ada").saved] == [(0, None)]
    assert decisions.current() == []
    assert decisions.undo("Ada").saved == []
    assert len(decisions.since()) == 6


def test_undo_leaves_answers_of_others_alone(decisions):
    decisions.record([Question(0, 0, 1)], who="Ada")
    decisions.record([Question(1, 0, 1)], who="Ada")
    decisions.record([Question(1, 0, -1)], who="Bob")
    assert [(d.row, d.answer) for d in decisions.undo("Ada").saved] == [(0, None)]
    assert [(d.row, d.answer, d.who) for d in decisions.current()] == [(1, -1, "Bob")]


def test_stale_answer_is_a_conflict_and_not_recorded(decisions):
    bob = decisions.record([Question(0, 0, -1, seen=0)], who="Bob").saved[0]
    result = decisions.record([Question(0, 0, 1, seen=0), Question(1, 0, 1, seen=0)], who="Ada")
    assert [(d.who, d.answer) for d in result.conflicts] == [("Bob", -1)]
    assert [d.row for d in result.saved] == [1]
    assert decisions.record([Question(0, 0, 1, seen=bob.id)], who="Ada").conflicts == []
    assert [(d.who, d.answer) for d in decisions.current() if d.row == 0] == [("Ada", 1)]


def test_undone_answer_is_no_conflict_for_a_page_that_never_saw_it(decisions):
    decisions.record([Question(0, 0, -1, seen=0)], who="Ada")
    decisions.undo("Ada")
    result = decisions.record([Question(0, 0, 1, seen=0)], who="Ada")
    assert result.conflicts == []
    assert [d.answer for d in decisions.current()] == [1]


def test_same_answer_of_two_people_is_no_conflict(decisions):
    decisions.record([Question(0, 0, 1, seen=0)], who="Bob")
    result = decisions.record([Question(0, 0, 1, seen=0)], who="Ada")
    assert result.conflicts == []
    assert len(decisions.since()) == 1


def test_repeated_request_records_nothing_twice(decisions):
    for _ in range(3):
        saved = decisions.record([Question(0, 0, 1), Question(1, 0, -1)], who="Ada", request="a").saved
        assert len(saved) == 2
    assert len(decisions.since()) == 2


@pytest.mark.parametrize(
    "question",
    [
        Question(50, 0, 1),
        Question(-1, 0, 1),
        Question(0, 3, 1),
        Question(0, 0, 2),
        Question(0, 0, True),
        Question(0.0, 0, 1),
    ],
)
def test_impossible_answers_are_errors_and_nothing_is_recorded(decisions, question):
    with pytest.raises(InputError):
        decisions.record([Question(0, 0, 1), question], who="Ada")
    assert decisions.since() == []


def test_database_refuses_changes_and_deletions(decisions):
    decisions.record([Question(0, 0, 1)], who="Ada")
    with sqlite3.connect(decisions.path) as other:
        for statement in ("UPDATE decisions SET answer = -1", "DELETE FROM decisions"):
            with pytest.raises(sqlite3.IntegrityError, match="never"):
                other.execute(statement)
    other.close()


def test_other_data_is_an_error(tmp_path, decisions):
    given = Labels.from_names(["cat"] * 50, SUBJECT.classes)
    for subject in (
        Subject(SUBJECT.names[:-1], SUBJECT.classes),
        Subject(SUBJECT.names, ("cat", "dog", "horse")),
        Subject(SUBJECT.names, SUBJECT.classes, given),
    ):
        with pytest.raises(InputError, match="other data"):
            Decisions(decisions.path, subject)


def test_file_that_is_no_database_is_kept(tmp_path):
    other = tmp_path / "notes.db"
    other.write_bytes(b"my notes" * 1000)
    with pytest.raises(InputError, match=r"notes\.db is not a database"):
        Decisions(other, SUBJECT)
    assert other.read_bytes() == b"my notes" * 1000
    with sqlite3.connect(tmp_path / "other.db") as database:
        database.execute("CREATE TABLE photos (x)")
    database.close()
    before = (tmp_path / "other.db").read_bytes()
    with pytest.raises(InputError, match="not a database of decisions"):
        Decisions(tmp_path / "other.db", SUBJECT)
    assert (tmp_path / "other.db").read_bytes() == before


@pytest.mark.parametrize("content", [b"\n", b"S", b"yes\n", b"SQLite format 4\0"])
def test_a_short_file_is_not_replaced_by_a_database(content, tmp_path):
    path = tmp_path / "review.db"
    path.write_bytes(content)
    for read_only in (False, True):
        with pytest.raises(InputError, match=r"review\.db is not a database of decisions"):
            Decisions(path, SUBJECT, read_only=read_only)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_an_empty_file_that_an_interruption_left_becomes_a_database(tmp_path):
    (tmp_path / "review.db").touch()
    with pytest.raises(InputError, match="not a database of decisions"):
        Decisions(tmp_path / "review.db", SUBJECT, read_only=True)
    with Decisions(tmp_path / "review.db", SUBJECT) as opened:
        opened.record([Question(0, 0, 1)], who="Ada")
    assert read_decisions(tmp_path / "review.db", SUBJECT).dense()[0, 0] == 1


def test_missing_folder_and_missing_file_are_errors(tmp_path):
    with pytest.raises(InputError, match="the folder does not exist"):
        Decisions(tmp_path / "nowhere" / "review.db", SUBJECT)
    with pytest.raises(InputError, match="no such file"):
        read_decisions(tmp_path / "review.db", SUBJECT)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_folder_can_be_read_but_not_answered(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with Decisions(folder / "review.db", SUBJECT) as opened:
        opened.record([Question(0, 0, 1)], who="Ada")
    (folder / "review.db").chmod(stat.S_IREAD)
    folder.chmod(stat.S_IREAD | stat.S_IEXEC)
    try:
        assert read_decisions(folder / "review.db", SUBJECT).dense()[0, 0] == 1
        with pytest.raises(InputError, match="cannot be written"), Decisions(folder / "review.db", SUBJECT) as opened:
            opened.record([Question(0, 0, 1)], who="Ada")
    finally:
        folder.chmod(stat.S_IRWXU)


def test_full_disk_is_an_error_and_earlier_answers_stay(decisions):
    decisions.record([Question(0, 0, 1)], who="Ada")
    pages = decisions._connection.execute("PRAGMA page_count").fetchone()[0]
    decisions._connection.execute(f"PRAGMA max_page_count = {pages}")
    long = [Question(row, 1, 1, draw="x" * 5000) for row in range(50)]
    with pytest.raises(InputError, match="the disk is full"):
        decisions.record(long, who="Ada")
    decisions._connection.execute("PRAGMA max_page_count = 10000")
    assert [decision.row for decision in decisions.current()] == [0]
    decisions.record([Question(49, 2, 1)], who="Ada")
    assert len(decisions.current()) == 2


def test_threads_and_connections_record_everything(tmp_path):
    path = tmp_path / "review.db"
    Decisions(path, SUBJECT).close()

    def answer(person):
        with Decisions(path, SUBJECT) as own:
            for row in range(25):
                own.record([Question(row, person, 1)], who=str(person))

    people = [threading.Thread(target=answer, args=(person,)) for person in range(3)]
    for person in people:
        person.start()
    for person in people:
        person.join()
    with Decisions(path, SUBJECT) as opened:
        assert len(opened.current()) == 75
        assert [d.id for d in opened.since()] == list(range(1, 76))


def test_killed_process_loses_no_confirmed_answer(tmp_path):
    program = textwrap.dedent("""
        import sys
        from spml.runs.decisions import Decisions, Question, Subject
        subject = Subject([f"{row}.jpg" for row in range(50)], ("cat", "dog", "<b>"))
        decisions = Decisions(sys.argv[1], subject)
        for number in range(10**6):
            pair = [Question(number % 50, 0, 1), Question(number % 50, 1, -1)]
            decisions.record(pair, who="Ada", request=str(number))
            print(number, flush=True)
    """)
    path = tmp_path / "review.db"
    process = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True)
    for _ in range(20):
        confirmed = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with Decisions(path, SUBJECT) as opened:
        requests = [int(decision.request) for decision in opened.since()]
        assert requests.count(confirmed) == 2
        assert all(requests.count(number) == 2 for number in set(requests))  # whole actions only
        assert opened._connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_labels_updated_by_decisions_keeps_the_rest():
    given = Labels.from_matrix([[1, 0, -1], [-1, -1, 1]])
    decided = Labels.from_matrix([[0, 1, 0], [1, 0, -1]], given.classes)
    np.testing.assert_array_equal(given.updated(decided).dense(), [[1, 1, -1], [1, -1, -1]])
    full = Labels.from_matrix([[1, 0, 0], [1, 0, 0]], given.classes, coding="full")
    np.testing.assert_array_equal(given.updated(full).dense(), full.dense())
    np.testing.assert_array_equal(full.updated(decided).dense(), [[1, 1, -1], [1, -1, -1]])
    with pytest.raises(InputError, match="rows"):
        given.updated(decided.subset([0]))
