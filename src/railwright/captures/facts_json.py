"""Facts as JSON: what `railwright discover --json` printed on another machine."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from railwright.node.model import Facts, InputError

from .source import Source

# A machine of 512 CPUs with 3,000 interrupts and 10 NICs of 256 GIDs has some 40,000.
MAX_VALUES = 400_000
_REMEDY = "give the output of `railwright discover --json`"


def read_facts_json(source: Source) -> Facts:
    """The facts of this JSON text. Raises InputError with the place: syntax, shape, and names that refer to nothing."""
    data = _load(source)
    schema = data.get("schema") if isinstance(data, dict) else None
    if (
        isinstance(schema, str)
        and schema.startswith("railwright.")
        and not schema.startswith("railwright.facts/")
    ):
        raise InputError(f"{source.name}.schema", f"is {schema}, not a machine's facts", _REMEDY)
    if not isinstance(data, dict) or schema is None:
        raise InputError(source.name, "is JSON, but no facts", _REMEDY)
    return Facts.read(data, source.name)


def _load(source: Source) -> Any:
    # Before the parser makes an object of each: a text of empty lists takes thirty times its size.
    if sum(map(source.text.count, "[{,")) > MAX_VALUES:
        raise InputError(source.name, f"holds more than {MAX_VALUES} values", _REMEDY)

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key, value in items:
            if key in mapping:
                raise InputError(source.name, f"the key {key[:40]!r} stands twice in one object")
            mapping[key] = value
        return mapping

    def constant(text: str) -> NoReturn:
        raise InputError(source.name, f"{text} is no JSON number")

    def number(text: str) -> float:
        value = float(text)
        return value if math.isfinite(value) else constant(text[:40])

    try:
        return json.loads(source.text, object_pairs_hook=pairs, parse_constant=constant, parse_float=number)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{source.name}:{error.lineno}:{error.colno}", f"is not JSON: {error.msg}"
        ) from error
    except RecursionError as error:
        raise InputError(source.name, "is nested too deeply for facts", _REMEDY) from error
    except InputError:
        raise
    except ValueError as error:
        # The one ValueError left is a number of thousands of digits.
        raise InputError(source.name, "holds a number that no machine has", _REMEDY) from error
