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


FULLY_VISIBLE = """() => {
  const box = document.querySelector('#scroll').getBoundingClientRect();
  const inside = ({ top, bottom }) => top >= box.top - 1 && bottom <= box.bottom + 1;
  const cells = [...document.querySelectorAll('.cell')].filter((cell) => inside(cell.getBoundingClientRect()));
  return cells.map((cell) => Number(cell.dataset.index)).sort((a, b) => a - b);
}"""


def selected(page):
    """Places of the selected examples in the list."""
    found = page.eval_on_selector_all(
        ".cell[aria-selected=true]", "cells => cells.map((cell) => Number(cell.dataset.index))"
    )
    return sorted(found)


def scrolled(page):
    return page.evaluate("() => document.querySelector('#scroll').scrollTop")


def no_to_the_screen(page, app):
    """Answer no to everything on the screen; returns the number of answers so far."""
    before = len(answers(app))
    page.keyboard.press("r")
    page.wait_for_function("() => !document.querySelector('.cell.waiting')")
    saved(page, number := len(answers(app)))
    assert number > before
    return number


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
        assert page.inner_text("#chosen") == "For the image in the frame"
        page.keyboard.press("a")
        selected = page.locator(".cell[aria-selected=true]").count()
        assert selected > 8
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


@pytest.mark.parametrize("height", [620, 700, 790])
def test_only_fully_visible_examples_are_selected(chromium, address, height):
    with window(chromium, address, viewport={"width": 1200, "height": height}) as page:
        assert page.inner_text("#select-page").startswith("Select visible")
        for wheel in (0, 90):
            page.evaluate("top => { document.querySelector('#scroll').scrollTop = top; }", wheel)
            page.wait_for_timeout(100)
            page.keyboard.press("a")
            visible = page.evaluate(FULLY_VISIBLE)
            assert selected(page) == visible
            assert 0 < len(visible) < cells(page).count()


def test_answers_scroll_only_if_nothing_unanswered_is_visible_and_undo_goes_back(chromium, address, app):
    with window(chromium, address) as page:
        page.focus("#grid")
        page.evaluate("() => { document.querySelector('#scroll').scrollTop = 300; }")
        page.wait_for_timeout(100)
        before, visible = scrolled(page), page.evaluate(FULLY_VISIBLE)
        for place in visible[-3:]:
            page.locator(f".cell[data-index='{place}']").click()
        page.keyboard.press("y")
        saved(page, 3)
        assert scrolled(page) == before
        assert page.get_attribute("#grid", "aria-activedescendant") == f"cell-{visible[0]}"
        page.keyboard.press("a")
        page.keyboard.press("n")
        saved(page, len(visible))
        assert scrolled(page) > before
        assert not set(page.evaluate(FULLY_VISIBLE)) & set(visible)  # a whole new screen
        page.keyboard.press("z")
        saved(page, 3)
        assert scrolled(page) == before
        assert selected(page) == visible[:-3]
        page.keyboard.press("z")
        saved(page, 0)
        assert (scrolled(page), selected(page)) == (before, visible[-3:])


def test_no_to_the_rest_of_the_screen(chromium, address, app):
    with window(chromium, address) as page:
        page.focus("#grid")
        before, visible = scrolled(page), page.evaluate(FULLY_VISIBLE)
        for place in (1, 2):
            cells(page).nth(place).click()
        page.click("#rest-of-screen")
        saved(page, len(visible) - 2)
        assert selected(page) == [1, 2]  # neither answered nor scrolled away
        assert scrolled(page) == before
        page.keyboard.press("y")
        saved(page, len(visible))
        assert sorted(answer for _, answer in answers(app)) == [-1] * (len(visible) - 2) + [1, 1]


def test_a_label_with_few_left_offers_the_next_one_and_is_not_shown_again(chromium, address, app):
    with window(chromium, address) as page:
        page.focus("#grid")
        first, second = page.locator("#labels .name").all_inner_texts()[:2]
        for place in range(2):  # two new labels on this screen: not finished
            page.locator(f".cell[data-index='{place}']").click()
        page.keyboard.press("y")
        assert no_to_the_screen(page, app) >= 10
        assert page.is_hidden("#few")
        no_to_the_screen(page, app)
        assert page.inner_text("#few").split() == f"Few left here. Next label: {second} →".split()
        page.keyboard.press("z")
        page.wait_for_selector("#few", state="hidden")
        no_to_the_screen(page, app)
        page.reload()
        page.wait_for_selector("body[data-ready]")
        now = page.inner_text("#label-name")
        assert now != first
        assert page.locator("#labels .name").last.inner_text() == first
        while page.is_hidden("#few"):  # "no" also corrects recovered labels
            no_to_the_screen(page, app)
        page.click("#next-label")
        page.wait_for_function("name => document.querySelector('#label-name').textContent !== name", arg=now)
        assert page.inner_text("#label-name") not in (first, now)
        page.wait_for_function("() => document.activeElement.id === 'grid'")


def test_precision_is_an_interval_with_a_marker_or_a_dash(chromium, address, app):
    with window(chromium, address) as page:
        overview = page.evaluate("() => fetch('api/overview').then((reply) => reply.json())")
        classes = [name.split() for name in overview["classes"]]
        for line in page.locator("#labels li").all():
            label = classes.index(line.locator(".name").inner_text().split())
            _, low, high = overview["quality"][label]["precision"]
            if overview["open"][label] == 0:
                assert line.locator(".range").inner_text() == "–"
                assert "nothing was recovered" in line.inner_text()
                continue
            whole, part, point = (line.locator(each).bounding_box() for each in (".range", ".range i", ".range b"))
            assert part["width"] == pytest.approx((high - low) * whole["width"], abs=4)
            assert part["x"] - 5 <= point["x"] + point["width"] / 2 <= part["x"] + part["width"] + 5
            assert "without any answers" in line.locator("button").get_attribute("title")


def test_a_label_that_was_not_recovered_has_no_precision(chromium, tmp_path):
    run = World(300).run(probabilities=np.full((300, len(World(300).truth[0])), 1e-4, np.float32))
    run.__dict__["store"] = ImageStore.from_array(np.zeros((300, 3, 8, 8), np.uint8))
    with review_app(run, tmp_path / "review.db") as app, serving(app.asgi) as address:
        assert not app.review.progress()["open"][0]
        with window(chromium, address) as page:
            assert set(page.locator("#labels .range").all_inner_texts()) == {"–"}
            assert "100%" not in page.locator(".stage").inner_text()
            assert "no label was recovered" in page.inner_text("#estimate")
            assert page.is_disabled("#to-check")


def test_recovered_examples_to_check_are_one_click_away(chromium, address, app):
    with window(chromium, address) as page:
        label = int(np.argmax(app.review.progress()["open"]))
        page.goto(f"{address}#label={label}")
        page.reload()
        page.wait_for_selector("body[data-ready]")
        number = app.review.progress()["open"][label]
        assert page.inner_text("#to-check") == f"{number:,} to check"
        page.click("#to-check")
        page.wait_for_selector("#to-check[aria-pressed=true]")
        assert page.locator(".cell:not(.recovered)").count() == 0
        page.focus("#grid")
        page.keyboard.press("y")
        saved(page, 1)
        assert page.inner_text("#to-check") == f"{number - 1:,} to check"
        page.click("#to-check")
        page.wait_for_selector("#to-check[aria-pressed=false]")
        assert page.input_value("#shown") == "open"


def test_examples_name_their_observed_label(chromium, address, app, run):
    with window(chromium, address) as page:
        cell = cells(page).nth(0)
        (label,) = np.flatnonzero(run.labels.dense([int(cell.get_attribute("data-row"))])[0] > 0)
        assert cell.locator(".caption").inner_text() == f"observed: {run.classes[label]}"
        assert f", observed: {run.classes[label]}" in cell.locator(".spoken").inner_text()


def test_numbers_are_explained(chromium, address):
    with window(chromium, address) as page:
        assert "narrower than 10 percentage points" in page.get_attribute("#progress", "title")
        assert page.inner_text(".colours").split() == ["recovered", "not", "recovered"]
        page.keyboard.press("?")
        help_text = page.inner_text("#keys")
        assert "narrower than 10 percentage points" in help_text
        assert "more cautious confidences than the averages shown here" in help_text


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
    with serving(app.asgi, port=0) as address:  # not the usual port, which another test may take in between
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
        for button in page.locator(".actions button").all():
            assert button.evaluate("button => button.scrollWidth <= button.clientWidth"), button.inner_text()
        assert page.locator(".actions").bounding_box()["height"] < 110
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
        wanted = [
            "view-label",
            "who",
            "find-label",
            "labels",
            "order",
            "shown",
            "renew",
            "to-check",
            "grid",
            "yes",
            "rest-of-screen",
            "undo",
        ]
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
            page.wait_for_load_state("networkidle")  # the list of the new label and its texts
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
