"""JSON from files and requests: whatever makes it unusable is a `ValueError`."""

import json
import re
from typing import Any

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_json(content: str | bytes) -> Any:
    """Parse JSON, and reject what `json.loads` accepts but nothing can use later, such as half characters.

    Raises
    ------
    ValueError
        If it is not JSON, is nested too deep, or contains half of a surrogate pair, which no file or terminal can hold.

    Examples
    --------
    >>> parse_json('["caf\\u00e9"]')
    ['café']
    >>> parse_json('["\\\\ud83d"]')
    Traceback (most recent call last):
    ValueError: it contains the half character \\ud83d
    """
    try:
        parsed = json.loads(content)
        encoded = content if isinstance(content, bytes) else content.encode()
        if _SURROGATE.search(encoded):
            json.dumps(parsed, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except UnicodeEncodeError as error:
        half = error.object[error.start].encode("ascii", "backslashreplace").decode()
        raise ValueError(f"it contains the half character {half}") from None
    return parsed
