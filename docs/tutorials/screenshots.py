"""Take the pictures of the review page for the guide and the tutorial; needs playwright and Chromium.

python docs/tutorials/screenshots.py
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright
from reviewer import answer_questions
from shapes import write_photos

import spml

IMAGES = Path(__file__).resolve().parents[1] / "images"


def main() -> None:
    """Take the pictures of the tutorial and of the guide."""
    with tempfile.TemporaryDirectory() as name:
        of_the_tutorial(Path(name))
        of_the_guide(Path(name))


def of_the_tutorial(folder: Path) -> None:
    """Train as in the tutorial, answer some questions, and take a picture of both views."""
    truth = write_photos(str(folder / "photos"), 1000)
    run = spml.train(
        folder / "photos", out=folder / "first", model="small", size=48, epochs=8, batch_size=32,
        learning_rate=3e-3, progress=False,
    )  # fmt: skip
    answer_questions(run, truth, 60)
    with review_page(folder / "first", f"label={run.classes.index('star')}") as page:
        take_picture(page, "review-by-label.png", [name for name, shapes in truth.items() if "star" in shapes])
        page.keyboard.press("Escape")
        page.locator("#view-row").click()
        page.locator("#row-labels li").first.wait_for()
        page.wait_for_timeout(800)
        page.screenshot(path=IMAGES / "review-by-image.png")


def of_the_guide(folder: Path) -> None:
    """Answer some questions about a run of `spml quickstart`, and take a picture."""
    spml_command = [sys.executable, "-m", "spml"]
    subprocess.run([*spml_command, "quickstart", "--out", str(folder / "demo"), "--scale", "0.5"], check=True)
    run = spml.load(folder / "demo" / "auto")
    assert run.folder.truth is not None
    present = run.folder.truth.dense() > 0
    truth = {
        name: [run.classes[label] for label in row.nonzero()[0]]
        for name, row in zip(run.folder.names, present, strict=True)
    }
    answer_questions(run, truth, 240)
    label = run.classes.index("seven")
    with review_page(folder / "demo" / "auto", f"label={label}") as page:
        take_picture(page, "review.png", [name for name, digits in truth.items() if "seven" in digits])


@contextmanager
def review_page(run: Path, place: str) -> Iterator[Page]:
    """The review page of a run in a browser."""
    command = [sys.executable, "-m", "spml", "review", str(run), "--no-browser", "--who", "Ada"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            address = next(found[0] for line in server.stdout if (found := re.search(r"http://\S+", line)))
            with sync_playwright() as started:
                browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
                page = browser.new_page(viewport={"width": 1160, "height": 690})
                page.goto(f"{address}#{place}")
                yield page
                browser.close()
        finally:
            server.terminate()


def take_picture(page: Page, file: str, select: list[str]) -> None:
    """A picture of the grid as a PNG file in docs/images, with the first of some examples selected."""
    cells = page.locator("#grid [role=option]")
    cells.first.wait_for()
    for place in range(6):
        if cells.nth(place).get_attribute("title") in select:
            cells.nth(place).click()
    page.wait_for_timeout(800)  # thumbnails
    page.screenshot(path=IMAGES / file)


if __name__ == "__main__":
    main()
