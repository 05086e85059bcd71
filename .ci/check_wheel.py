"""Check the built wheel: its files, and that it works in an empty environment with the required packages only.

python .ci/check_wheel.py dist
"""

import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"
USE = """
import time, torch
start = time.perf_counter()
import spml
labels = spml.Labels.from_names(["cat", "dog"], ["cat", "dog"]).batch([0, 1])
assert spml.loss("em")(torch.zeros(2, 2), labels).isfinite()
print(f"a loss, after torch is imported: {time.perf_counter() - start:.2f} s")
try:
    spml.train
except spml.InputError as error:
    assert "[train]" in str(error)
else:
    raise AssertionError("spml.train works without the extra: is the environment empty?")
"""


def check_contents(wheel: Path) -> None:
    """The wheel holds every file of the package, and nothing else but its metadata."""
    files = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {
        path.relative_to(SOURCE).as_posix()
        for path in (SOURCE / "spml").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    if files != expected:
        raise SystemExit(f"missing: {sorted(expected - files)}, unexpected: {sorted(files - expected)}")
    print(f"{wheel.name}: {len(files)} files, {wheel.stat().st_size / 1000:.0f} kB")


def check_use(wheel: Path) -> None:
    """Install it alone, use a loss, and time `spml --help`."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True)
        subprocess.run([python, "-c", USE], check=True, cwd=folder)
        timing = "import time; start = time.perf_counter()\ntry: from spml.cli import app; app(['--help'])\n"
        timing += "except SystemExit: print(f'spml --help: {time.perf_counter() - start:.2f} s')"
        output = subprocess.run([python, "-c", timing], check=True, cwd=folder, capture_output=True, text=True).stdout
        print(output.splitlines()[-1])


if __name__ == "__main__":
    (built,) = Path(sys.argv[1]).glob("*.whl")
    check_contents(built)
    check_use(built.resolve())
