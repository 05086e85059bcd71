"""HTML that is escaped by construction: text inside a tag stays text, whatever it contains."""

from html import escape

VOID = frozenset({"br", "img", "meta", "circle", "line", "path", "rect"})


class Html(str):
    """HTML. A plain `str` is text, and is escaped when it is put into a tag."""

    __slots__ = ()


Child = str | None
Attribute = str | int | float | bool | None


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """<name attributes>children</name>. None is omitted; `class_` becomes class, `aria_label` becomes aria-label."""
    opening = name + "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID and not children:
        return Html(f"<{opening}>" if name in ("br", "img", "meta") else f"<{opening}/>")
    return Html(f"<{opening}>{join(*children)}</{name}>")


def join(*children: Child) -> Html:
    """Concatenate children."""
    return Html("".join(c if isinstance(c, Html) else escape(c, quote=False) for c in children if c is not None))


def with_code(text: str) -> Html:
    """Text in which parts between backticks become <code>."""
    return join(*(tag("code", part) if index % 2 else part for index, part in enumerate(text.split("`"))))


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f' {name}="{escape(text)}"'


def count(number: int, row_noun: str = "", plural: str = "") -> str:
    """1,234 or, with a noun, "1 image" and "1,234 images"."""
    if not row_noun:
        return f"{number:,}"
    return f"{number:,} {row_noun if number == 1 else plural or row_noun + 's'}"


def percent(share: float) -> str:
    """Return a fraction in percent. Only 1 is shown as 100%, only 0 as 0%."""
    if share != share:
        return "–"
    if 0 < share < 0.005:
        return "<1%"
    if 0.995 <= share < 1:
        return ">99%"
    return f"{share:.0%}"


def score_text(share: float) -> str:
    """Return a score in [0, 1], shown in percent as in the papers."""
    return "–" if share != share else f"{100 * share:.1f}"
