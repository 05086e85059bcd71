"""Tasks of Label Studio: the configuration of a project, what a task shows, and lists of chosen labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

PRESENT, ABSENT = "labels", "absent"
"""Names of the two lists of choices."""


def label_studio_config(classes: Iterable[str], *, texts: bool = False) -> str:
    """The labelling configuration of a Label Studio project in which labels are marked as present or absent.

    It fits the tasks that `spml recover --format label-studio` and `spml review --export tasks.json` write.

    Parameters
    ----------
    classes : iterable of str
    texts : bool
        Whether tasks show texts instead of images.

    Returns
    -------
    str
        XML.

    Examples
    --------
    >>> print(label_studio_config(["cat"]))
    <View>
      <Image name="image" value="$image"/>
      <Header value="Present"/>
      <Choices name="labels" toName="image" choice="multiple">
        <Choice value="cat"/>
      </Choices>
      <Header value="Absent"/>
      <Choices name="absent" toName="image" choice="multiple">
        <Choice value="cat"/>
      </Choices>
    </View>
    <BLANKLINE>
    """
    kind = "Text" if texts else "Image"
    field = kind.lower()
    choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in classes)
    lists = "".join(
        f'  <Header value="{title}"/>\n  <Choices name="{name}" toName="{field}" choice="multiple">\n{choices}\n'
        "  </Choices>\n"
        for name, title in ((PRESENT, "Present"), (ABSENT, "Absent"))
    )
    return f'<View>\n  <{kind} name="{field}" value="${field}"/>\n{lists}</View>\n'


def task_data(name: str, *, prefix: str = "", text: str | None = None) -> dict[str, Any]:
    """What a task shows, and the name of its row.

    Examples
    --------
    >>> task_data("cat/1 a.jpg", prefix="/data/local-files/?d=photos/")
    {'image': '/data/local-files/?d=photos/cat/1%20a.jpg', 'name': 'cat/1 a.jpg'}
    """
    if text is not None:
        return {"text": text, "name": name}
    return {"image": prefix + quote(name) if prefix else name, "name": name}


def chosen(choices: Sequence[str], *, row: int, among: str = PRESENT, texts: bool = False) -> dict[str, Any]:
    """Labels that are chosen in one of the two lists, as an item of `result`."""
    field = "text" if texts else "image"
    value = {"choices": list(choices)}
    return {"id": f"row{row}-{among}", "from_name": among, "to_name": field, "type": "choices", "value": value}
