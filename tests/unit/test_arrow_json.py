"""Arrow values as JSON: what `json` reads from it are the values, without null fields."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.history.arrow_json import to_json

_TYPE = pa.struct(
    {
        "number": pa.int64(),
        "is": pa.bool_(),
        'te"xt': pa.string(),
        "list": pa.list_(pa.struct({"texts": pa.list_(pa.string()), "number": pa.int32()})),
        "inner": pa.struct({"left": pa.string(), "right": pa.string()}),
    }
)
_texts = (
    st.none() | st.text(max_size=4) | st.sampled_from(["\0", "\n", '"', "\\", "{,", "\u2028", "\U0001f600", "\x7f"])
)
_listed = st.none() | st.fixed_dictionaries(
    {"texts": st.none() | st.lists(_texts, max_size=3), "number": st.none() | st.integers(-9, 9)}
)
_values = st.none() | st.fixed_dictionaries(
    {
        "number": st.none() | st.integers(-(2**63), 2**63 - 1),
        "is": st.none() | st.booleans(),
        'te"xt': _texts,
        "list": st.none() | st.lists(_listed, max_size=3),
        "inner": st.none() | st.fixed_dictionaries({"left": _texts, "right": _texts}),
    }
)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(one) for name, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


@given(st.lists(_values, max_size=6), st.integers(0, 3), st.integers(0, 6))
def test_to_json_of_any_values_is_read_back(values: list[Any], start: int, count: int) -> None:
    """Also of a slice, whose lists begin within their items."""
    texts = to_json(pa.array(values, _TYPE).slice(start, count)).to_pylist()
    parsed = [None if text is None else json.loads(text) for text in texts]
    assert parsed == [without_nulls(value) for value in values[start : start + count]]


def test_to_json_of_chosen_fields_has_an_object_for_each_chosen_struct() -> None:
    structs = pa.array([None, {"number": 1, "is": True, "inner": {"left": "l", "right": "r"}}, {"list": []}], _TYPE)
    chosen = {"number": None, "list": None, "inner": {"left": None}}
    assert to_json(structs, chosen).to_pylist() == [
        '{"inner":{}}',
        '{"number":1,"inner":{"left":"l"}}',
        '{"list":[],"inner":{}}',
    ]
