"""The command line, run in this process."""

import sys

from spml.cli import main


def run(*arguments, monkeypatch=None, capsys=None):
    """(exit code, output) of a command run in this process."""
    monkeypatch.setattr(sys, "argv", ["spml", *map(str, arguments)])
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
    captured = capsys.readouterr()
    return code, captured.out + captured.err
