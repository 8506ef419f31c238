"""Login lines of JAAS, as the setting `sasl.jaas.config` of Kafka's Java client has them."""

from __future__ import annotations

import re
from collections.abc import Mapping

_OPTION = re.compile(r"""([\w.-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"})


def jaas_options(text: str) -> dict[str, str]:
    r"""Return the options of a JAAS login line: `...LoginModule required username="a" password="b\"c";`."""
    return {name: _unescaped(double or single) or bare for name, double, single, bare in _OPTION.findall(text)}


def _unescaped(text: str) -> str:
    controls = {"n": "\n", "t": "\t", "r": "\r"}
    return re.sub(r"\\(.)", lambda match: controls.get(match[1], match[1]), text, flags=re.DOTALL)


def jaas_line(module: str, options: Mapping[str, str]) -> str:
    """Return the login line of a module, whose options `jaas_options` returns again."""
    quoted = (f'{name}="{escaped(value)}"' for name, value in options.items())
    return f"{' '.join([module, 'required', *quoted])};"


def escaped(value: str) -> str:
    """Return an option's value as it stands between double quotes."""
    return value.translate(_ESCAPES)
