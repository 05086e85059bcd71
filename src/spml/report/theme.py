"""The page's colours (light and dark), style sheet and script."""

from functools import cache
from importlib.resources import files

# name: (light, dark). On `page` and `card`, text has a contrast of at least 4.5:1, lines and bars of 3:1.
PALETTE = {
    "page": ("#f6f7f9", "#0f1318"),
    "card": ("#ffffff", "#181d24"),
    "edge": ("#dfe3e8", "#2c343e"),
    "text": ("#1b2128", "#e7ebf0"),
    "quiet": ("#58626e", "#a3adb9"),
    "accent": ("#1f5fbf", "#7fb0ff"),
    "track": ("#e9edf2", "#28303a"),
    "grid": ("#e6eaee", "#272f38"),
    "given": ("#1f5fbf", "#7fb0ff"),
    "given-soft": ("#e6effb", "#1b2c47"),
    "right": ("#1a7443", "#62cb92"),
    "right-soft": ("#e3f4ea", "#173526"),
    "wrong": ("#b3312c", "#ff8f87"),
    "wrong-soft": ("#fbe9e8", "#43201f"),
    "new": ("#75509f", "#c4a2f0"),
    "new-soft": ("#f1eaf9", "#2f2440"),
    "missed": ("#7c5a0c", "#e0b860"),
    "absent": ("#77818d", "#7d8895"),
    "series-1": ("#1f5fbf", "#7fb0ff"),
    "series-2": ("#c0560a", "#ffa25c"),
    "series-3": ("#1a7443", "#62cb92"),
    "series-4": ("#8b3fa8", "#d59af0"),
    "series-5": ("#7c5a0c", "#e0b860"),
    "series-6": ("#0d7480", "#58c7d3"),
    "heat": ("#1f5fbf", "#7fb0ff"),
}


def variables(dark: bool) -> str:
    """Return the palette as CSS custom properties."""
    return "".join(f"--{name}:{colours[dark]};" for name, colours in PALETTE.items())


@cache
def style() -> str:
    """Return the page's style sheet. By default the theme follows the system's preference."""
    light, dark = variables(False), variables(True)
    return (
        f":root{{color-scheme:light;{light}}}"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}"
        f":root[data-theme=dark]{{color-scheme:dark;{dark}}}\n" + _file("page.css")
    )


@cache
def script() -> str:
    """Return the page's script: the switch between light and dark themes."""
    return _file("page.js")


def _file(name: str) -> str:
    return (files("spml.report") / name).read_text(encoding="utf-8")
