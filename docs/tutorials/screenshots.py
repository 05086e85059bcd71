"""Take the pictures of the review page for the tutorial; needs playwright and Chromium.

python docs/tutorials/screenshots.py
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright
from reviewer import answer_questions
from shapes import write_photos

import spml

IMAGES = Path(__file__).resolve().parents[1] / "images"


def main() -> None:
    """Train as in the tutorial, answer some questions, and take a picture of both views."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        truth = write_photos(str(folder / "photos"), 1000)
        run = spml.train(
            folder / "photos", out=folder / "first", model="small", size=48, epochs=8, batch_size=32,
            learning_rate=3e-3, progress=False,
        )  # fmt: skip
        answer_questions(run, truth, 60)
        command = [sys.executable, "-m", "spml", "review", str(folder / "first"), "--no-browser", "--who", "Ada"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                address = next(found[0] for line in server.stdout if (found := re.search(r"http://\S+", line)))
                with sync_playwright() as started:
                    browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
                    page = browser.new_page(viewport={"width": 1160, "height": 640})
                    page.goto(f"{address}#label={run.classes.index('star')}")
                    take_pictures(page, [name for name, shapes in truth.items() if "star" in shapes])
                    browser.close()
            finally:
                server.terminate()


def take_pictures(page: Page, select: list[str]) -> None:
    """Both views of the page, as PNG files in docs/images; in the grid, the first of these photos are selected."""
    cells = page.locator("#grid [role=option]")
    cells.first.wait_for()
    for place in range(6):
        if cells.nth(place).get_attribute("title") in select:
            cells.nth(place).click()
    page.wait_for_timeout(800)  # thumbnails
    page.screenshot(path=IMAGES / "review-by-label.png")
    page.keyboard.press("Escape")
    page.locator("#view-row").click()
    page.locator("#row-labels li").first.wait_for()
    page.wait_for_timeout(800)
    page.screenshot(path=IMAGES / "review-by-image.png")


if __name__ == "__main__":
    main()
