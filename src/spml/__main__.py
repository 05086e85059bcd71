"""python -m spml, and the command `spml`. It imports nothing heavy at first, so that signals are handled early."""

import importlib
import sys

from spml.boundary import run_guarded


def main() -> None:
    """Run the command line."""
    if code := run_guarded(lambda: importlib.import_module("spml.cli")):
        sys.exit(code)
    from spml.cli import main

    main()


if __name__ == "__main__":
    main()
