"""The review page in a real browser, with 10,000 images and hostile names."""

import shutil
from contextlib import contextmanager

import numpy as np
import pytest

import spml
from spml.data.stores.images import ImageStore
from spml.runs.folder import open_run
from support.recovery import World
from support.review_server import review_app, serving

playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs the browser Chromium")

ROWS = 12_500  # of which 10,000 are training and validation rows


@pytest.fixture(scope="module")
def run():
    run = World(ROWS).run()
    pixels = np.random.default_rng(0).integers(0, 256, (ROWS, 3, 12, 12), dtype=np.uint8)
    run.__dict__["store"] = ImageStore.from_array(pixels)
    return run


@pytest.fixture(scope="module")
def chromium():
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def app(run, tmp_path):
    with review_app(run, tmp_path / "review.db") as app:
        yield app


@pytest.fixture
def address(app):
    with serving(app.asgi) as address:
        yield address


@contextmanager
def window(chromium, address, complaints=True, **options):
    """A page that must neither log errors nor talk to other hosts."""
    context = chromium.new_context(**({"viewport": {"width": 1200, "height": 800}} | options))
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith(address) else problems.append(request.url))
    page.goto(address)
    page.wait_for_selector("body[data-ready]")
    yield page
    context.close()
    assert not complaints or problems == []


def cells(page):
    return page.locator(".cell")


def saved(page, number):
    """Wait until the page shows this number of answers."""
    page.wait_for_function(
        "n => document.querySelector('#progress b').textContent === n.toLocaleString('en')", arg=number
    )


def answers(app):
    return [(decision.row, decision.answer) for decision in app.review.decisions.current()]


def test_keyboard_answers_undoes_and_moves(chromium, address, app):
    with window(chromium, address) as page:
        rows = [int(cells(page).nth(place).get_attribute("data-row")) for place in range(4)]
        page.focus("#grid")
        for key in "ynu":
            page.keyboard.press(key)
        saved(page, 3)
        assert sorted(answers(app)) == sorted(zip(rows, [1, -1, 0], strict=False))
        assert page.locator(".cell[data-answer]").count() == 3
        assert page.get_attribute("#grid", "aria-activedescendant") == "cell-3"
        page.keyboard.press("z")
        saved(page, 2)
        page.keyboard.press("z")
        saved(page, 1)
        assert page.inner_text("#toast").startswith("Undone: 1 answer (")
        assert answers(app) == [(rows[0], 1)]
        page.keyboard.press("Shift+ArrowRight")
        page.keyboard.press("Shift+ArrowDown")
        assert page.locator(".cell[aria-selected=true]").count() > 3
        page.keyboard.press("Escape")
        assert page.inner_text("#chosen") == "Framed image"
        page.keyboard.press("a")
        selected = page.locator(".cell[aria-selected=true]").count()
        assert selected > 10
        assert page.inner_text("#yes span") == f"Yes to {selected}"
        page.keyboard.press("Escape")
        assert page.locator(".cell[aria-selected=true]").count() == 0


def test_mouse_selects_by_click_range_and_area(chromium, address, app):
    with window(chromium, address) as page:
        cells(page).nth(0).click()
        cells(page).nth(3).click(modifiers=["Shift"])
        assert page.locator(".cell[aria-selected=true]").count() == 4
        page.click("#yes")
        saved(page, 4)
        box, last = cells(page).nth(5).bounding_box(), cells(page).nth(6).bounding_box()
        page.mouse.move(box["x"] + 20, box["y"] + 20)
        page.mouse.down()
        page.mouse.move(last["x"] + 30, last["y"] + 40, steps=4)
        page.mouse.up()
        chosen = page.locator(".cell[aria-selected=true]").count()
        assert chosen == 2
        page.click("#no")
        saved(page, 6)
        assert sorted(answer for _, answer in answers(app)) == [-1, -1, 1, 1, 1, 1]


def test_ten_thousand_images_scroll_without_freezing(chromium, address, app):
    with window(chromium, address) as page:
        total = page.evaluate("() => Number(document.querySelector('.cell').getAttribute('aria-setsize'))")
        assert total > 7_000
        longest = page.evaluate(
            """async () => {
              const box = document.querySelector('#scroll');
              let before = performance.now(), longest = 0;
              for (let step = 1; step <= 60; step++) {
                box.scrollTop = box.scrollHeight * step / 60;
                await new Promise(requestAnimationFrame);
                longest = Math.max(longest, performance.now() - before);
                before = performance.now();
              }
              return longest;
            }"""
        )
        assert longest < 1000  # milliseconds per frame, on a busy machine
        assert cells(page).count() < 150
        page.wait_for_function("n => document.querySelector(`[aria-posinset='${n}'] img`)?.naturalWidth > 0", arg=total)


def test_two_windows_see_each_other_and_do_not_overwrite(chromium, address, app):
    with window(chromium, address) as ada, window(chromium, address) as bob:
        bob.fill("#who", "Bob <b>")
        assert cells(ada).nth(0).get_attribute("data-row") == cells(bob).nth(0).get_attribute("data-row")
        bob.focus("#grid")
        bob.keyboard.press("n")
        saved(bob, 1)
        ada.focus("#grid")
        ada.keyboard.press("y")  # before the page has heard of Bob's answer
        ada.wait_for_selector("#alert:not([hidden])")
        assert "Bob <b> answered before you" in ada.inner_text("#alert")
        assert [answer for _, answer in answers(app)] == [-1]
        ada.keyboard.press("y")
        saved(bob, 2)  # the other window is notified
        assert bob.locator(".cell[data-answer='1']").count() == 1


def test_reload_keeps_place_and_answers(chromium, address, app):
    with window(chromium, address) as page:
        page.locator("#labels button").nth(2).click()
        name = page.inner_text("#label-name")
        page.focus("#grid")
        page.keyboard.press("y")
        saved(page, 1)
        page.reload()
        page.wait_for_selector("body[data-ready]")
        assert page.inner_text("#label-name") == name
        assert "1 answer" in page.inner_text("#progress")
        page.select_option("#shown", "answered")
        page.wait_for_function("() => document.querySelectorAll('.cell').length === 1")
        image = page.wait_for_selector(".cell img")
        assert image.evaluate("image => getComputedStyle(image).opacity") == "1"


def test_answers_survive_a_server_that_stops(chromium, app):
    with serving(app.asgi) as address:
        port = int(address.split(":")[2].split("/")[0])
        context = chromium.new_context()
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector("body[data-ready]")
        page.focus("#grid")
    page.keyboard.press("y")
    page.wait_for_selector("#alert:not([hidden])")
    assert "Unsaved answers: 1" in page.inner_text("#alert")
    assert answers(app) == []
    with serving(app.asgi, port=port) as address:
        page.goto(address)
        page.wait_for_selector("body[data-ready]")
        saved(page, 1)
        assert [answer for _, answer in answers(app)] == [1]
    context.close()


def test_one_image_at_a_time(chromium, address, app):
    with window(chromium, address) as page:
        page.click("#view-row")
        page.wait_for_selector("#row-labels li.current")
        assert page.locator("#row-labels .tag", has_text="given with the data").count() >= 1
        page.wait_for_function("() => document.querySelector('#row-content img').naturalWidth > 0")
        row = int(page.evaluate("() => location.hash.slice(5)"))
        page.keyboard.press("y")
        page.keyboard.press("n")
        saved(page, 2)
        assert answers(app) == [(row, 1), (row, -1)]
        listed = page.locator("#row-labels li").count()
        page.click("#rest")
        saved(page, listed - 1)  # all but the given label
        page.click("#row-undo")  # as one action
        saved(page, 2)
        page.focus("#row-labels li:nth-child(4) .no")
        page.keyboard.press("Enter")
        saved(page, 3)
        assert page.evaluate("() => document.activeElement.matches('#row-labels li:nth-child(4) .no')")
        page.click("#row-undo")
        saved(page, 2)
        page.keyboard.press("ArrowRight")
        page.wait_for_function("row => location.hash.slice(5) !== String(row)", arg=row)
        page.fill("#add-label", "鳥")
        page.keyboard.press("Enter")
        saved(page, 3)
        page.keyboard.press("Escape")
        page.reload()
        page.wait_for_selector("#row-labels li.current")


def test_dark_mode_phone_width_and_names_for_screen_readers(chromium, address):
    lightness = (
        "() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((a, b) => a + Number(b), 0)"
    )
    with window(chromium, address, color_scheme="dark") as page:
        assert page.evaluate(lightness) < 150
        page.click("#theme")
        assert page.evaluate(lightness) > 600
    phone = {"viewport": {"width": 375, "height": 720}, "has_touch": True, "is_mobile": True}
    with window(chromium, address, **phone) as page:
        for button in ("#view-label", "#view-row", "#view-label"):
            page.click(button)
            assert page.evaluate("() => document.documentElement.scrollWidth") <= 375
        cells(page).nth(1).tap()
        assert page.locator(".cell[aria-selected=true]").count() == 1
        page.tap("#yes")
        saved(page, 1)
        for role, name in (("textbox", "Your name"), ("combobox", "Order"), ("combobox", "Show")):
            assert page.get_by_role(role, name=name, exact=True).is_visible(), name
        tree = page.locator("main").aria_snapshot()
        assert "listbox" in tree
        assert "confidence" in tree


# WCAG 2.2 contrast of every visible text with its background.
CONTRAST = """() => {
  const channel = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => top.slice(0, 3).map((value, i) => top[3] * value + (1 - top[3]) * below[i]);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const background = (node) => {
    if (!node) return [255, 255, 255];
    return over(rgba(getComputedStyle(node).backgroundColor), background(node.parentElement));
  };
  const poor = [];
  let checked = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.checkVisibility({ checkOpacity: true })) continue;
    if (node.closest('.spoken, .skip, :disabled, option')) continue;
    const below = background(node), colour = over(rgba(getComputedStyle(node).color), below);
    const [high, low] = [light(colour), light(below)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    checked += 1;
    if (ratio < 4.5) poor.push(`${ratio.toFixed(2)} ${node.className}: ${walker.currentNode.data.trim()}`);
  }
  if (checked < 10) poor.push(`only ${checked} texts were checked`);
  return poor;
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_have_enough_contrast(chromium, address, theme):
    with window(chromium, address, color_scheme=theme) as page:
        cells(page).nth(0).click()
        assert page.evaluate(CONTRAST) == []
        page.click("#view-row")
        page.wait_for_selector("#row-labels li.current")
        assert page.evaluate(CONTRAST) == []
        page.keyboard.press("?")
        page.wait_for_selector("#keys[open]")
        assert page.evaluate(CONTRAST) == []


def test_everything_is_reached_by_the_tab_key_in_a_sensible_order(chromium, address):
    with window(chromium, address) as page:
        reached = []
        for _ in range(40):
            page.keyboard.press("Tab")
            focused = page.evaluate("() => document.activeElement.id || document.activeElement.closest('[id]')?.id")
            if focused not in reached:
                reached.append(focused)
        wanted = ["view-label", "who", "find-label", "labels", "order", "shown", "renew", "grid", "yes", "undo"]
        assert [each for each in reached if each in wanted] == wanted


def test_texts_with_marked_words(chromium, tmp_path):
    table = tmp_path / "tickets.csv"
    words = {"billing": "invoice", "login": "password"}
    lines = [f'"please check the <b>{word}</b> number {n}",{label}' for n in range(40) for label, word in words.items()]
    table.write_text("text,label\n" + "\n".join(lines) + "\n")
    spml.train(table, out=tmp_path / "run", base="linear", device="cpu", progress=False)
    with review_app(open_run(tmp_path / "run"), tmp_path / "review.db") as app, serving(app.asgi) as address:
        with window(chromium, address) as page:
            page.select_option("#shown", "all")  # the two labels exclude each other: nothing is in doubt
            page.locator("#labels button", has_text="billing").click()
            page.wait_for_function("() => document.querySelector('#label-name').textContent === 'billing'")
            page.wait_for_selector(".cell mark")
            assert page.evaluate(CONTRAST) == []
            assert page.get_by_role("option", name="please check the <b>").count() == cells(page).count() > 3
            page.focus("#grid")
            page.keyboard.press("n")
            saved(page, 1)
            page.click("#theme")
            assert page.evaluate(CONTRAST) == []
            page.keyboard.press("o")
            page.wait_for_selector("#row-content .whole")
            assert "please check the <b>" in page.inner_text("#row-content")
            page.keyboard.press("ArrowDown")
            page.wait_for_function("() => !document.querySelector('#row-legend').hidden")
        phone = {"viewport": {"width": 375, "height": 720}, "has_touch": True, "is_mobile": True}
        with window(chromium, address, **phone) as page:
            page.wait_for_selector(".cell .words")
            assert page.evaluate("() => document.documentElement.scrollWidth") <= 375
            assert page.locator(".top").bounding_box()["height"] < 110


def test_values_of_features(chromium, tables, tmp_path):
    with (
        review_app(open_run(tables / "on-features"), tmp_path / "review.db") as app,
        serving(app.asgi) as address,
        window(chromium, address) as page,
    ):
        page.wait_for_selector(".cell .values th")
        assert "feature" in page.locator(".cell .values").first.inner_text()
        page.click("#view-row")
        page.wait_for_selector(".whole .values .part i")
        assert page.evaluate(CONTRAST) == []
