"""Adding the runs of a bench to a file of results."""

import csv
import sys
from pathlib import Path

import pytest

import add_rows


def write(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def row(method: str, seed: int, **more: str) -> dict[str, str]:
    return {"bench": "b", "data": "d", "method": method, "seed": str(seed), "test_map": "0.5", **more}


def test_runs_replace_earlier_rows_and_keep_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, runs = tmp_path / "results.csv", tmp_path / "runs.csv"
    write(results, [row("an", 0, commit="old"), row("em", 0, commit="old"), row("em", 1, commit="old")])
    new = [row("em", 1, chosen="True"), row("em", 2, chosen="True"), row("wan", 0, chosen="False")]
    write(runs, [{**each, "commit": "new", "recovery_map": "0.9"} for each in new])
    monkeypatch.setattr(sys, "argv", ["add_rows.py", str(runs), str(results)])
    add_rows.main()
    found = [(each["method"], each["seed"], each["commit"], each["recovery_map"]) for each in add_rows.read(results)]
    assert found == [
        ("an", "0", "old", ""),
        ("em", "0", "old", ""),
        ("em", "1", "new", "0.9"),
        ("em", "2", "new", "0.9"),
    ]
    monkeypatch.setattr(sys, "argv", ["add_rows.py", str(runs), str(results), "--all"])
    add_rows.main()
    assert [each["method"] for each in add_rows.read(results)] == ["an", "em", "em", "em", "wan"]
