"""The kind "json_keys": single keys of a file that others own too."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railwright.node.state import InputError, apply, jsontext, record, revert
from railwright.node.state.item import Node
from tests.unit.state_support import LONG_AGO, file_entry, fingerprint, item, items, make_node, plant

PATH = "/etc/docker/daemon.json"
THEIRS = (
    '{\n  "log-driver": "json-file",\n  "log-opts": {"max-size": "10m", "rate": 1e6},\n  "debug": false\n}\n'
)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return make_node(tmp_path / "node")


def keys(values: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"kind": "json_keys", "path": PATH, "keys": values, **more}


def put(node: Path, *entries: dict[str, Any], name: str = "part", **more: Any) -> Any:
    return apply({name: list(entries)}, root=str(node), **more)


def text(node: Path) -> str:
    return (node / PATH.lstrip("/")).read_text()


def test_keys_are_set_and_the_rest_keeps_its_order_digits_and_form(node: Path) -> None:
    plant(node, PATH, THEIRS, 0o640)
    put(node, keys({"/default-runtime": "nvidia", "/log-opts/max-size": "50m", "/exec-opts": ["a=b"]}))
    assert text(node) == (
        '{\n  "log-driver": "json-file",\n  "log-opts": {\n    "max-size": "50m",\n    "rate": 1e6\n  },\n'
        '  "debug": false,\n  "default-runtime": "nvidia",\n  "exec-opts": [\n    "a=b"\n  ]\n}\n'
    )
    assert (node / "etc/docker/daemon.json").stat().st_mode & 0o777 == 0o640


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_what_is_nested_as_deep_as_it_may_be_goes_in_and_comes_out_again(node: Path) -> None:
    plant(node, PATH, THEIRS)
    before = fingerprint(node)
    pointer = "/a" * 64
    for value in (nested(64), 2):
        assert put(node, keys({pointer: value})).failures == ()
    assert not put(node, keys({pointer: 2})).changed
    assert revert(root=str(node)).failures == ()
    assert fingerprint(node) == before


@pytest.mark.parametrize(
    ("pointer", "value", "why"),
    [
        ("/a" + "/b" * 600, 1, "the pointer has 601 names"),
        ("/a" * 65, 1, "the pointer has 65 names"),
        ("/a", nested(65), "the value is nested more than 64 deep"),
        ("/a", nested(5000), "the value is nested more than 64 deep"),
    ],
)
def test_what_is_nested_deeper_than_can_be_read_back_is_refused(
    node: Path, pointer: str, value: Any, why: str
) -> None:
    with pytest.raises(InputError) as caught:
        put(node, keys({pointer: value}))
    assert (caught.value.where, caught.value.why) == (f"slices.part[0].keys.{pointer}", why)


@pytest.mark.parametrize("depth", [128, 900])
def test_a_file_that_is_nested_too_deep_is_left_alone(node: Path, depth: int) -> None:
    plant(node, PATH, json.dumps({"a": nested(depth)}))
    (failure,) = put(node, keys({"/a": 1})).failures
    assert failure.why == f"{PATH} is nested more than 128 deep"


def test_a_number_that_the_record_could_not_keep_is_left(node: Path) -> None:
    plant(node, PATH, '{"a": 1e999, "b": 1e999}')
    before = fingerprint(node)
    (failure,) = put(node, keys({"/a": 1})).failures
    assert failure.why == f"{PATH}, /a.value: inf is no JSON number"
    assert fingerprint(node) == before
    assert put(node, keys({"/c": 1})).failures == ()
    assert not put(node, keys({"/c": 1})).failures


def test_a_revert_puts_the_very_bytes_back(node: Path) -> None:
    plant(node, PATH, THEIRS, 0o640)
    before = fingerprint(node)
    put(node, keys({"/default-runtime": "nvidia", "/debug": True, "/log-opts/max-file": "3"}))
    revert(root=str(node))
    assert fingerprint(node) == before


def test_a_file_that_is_not_there_is_made_and_goes_again(node: Path) -> None:
    before = fingerprint(node)
    outcome = put(node, keys({"/runtimes/nvidia/path": "nvidia-container-runtime"}))
    assert item(outcome)["action"] == "create"
    assert json.loads(text(node)) == {"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}
    assert not put(node, keys({"/runtimes/nvidia/path": "nvidia-container-runtime"})).changed
    revert(root=str(node))
    assert fingerprint(node) == before


def test_others_keys_stay_when_ours_go(node: Path) -> None:
    plant(node, PATH, '{"a": 1, "b": {"c": 2}}')
    put(node, keys({"/a": 10, "/b/d": 20, "/e/f/g": 30}))
    (node / PATH[1:]).write_text(
        '{"a": 10, "b": {"c": 2, "d": 20}, "e": {"f": {"g": 30}, "theirs": 1}, "new": [1]}'
    )
    revert(root=str(node))
    # a goes back, d goes, e stays for what somebody put into it, f goes since only ours was in it
    assert text(node) == '{"a": 1, "b": {"c": 2}, "e": {"theirs": 1}, "new": [1]}'


def test_a_key_that_somebody_changed_since_is_left_and_said(node: Path) -> None:
    plant(node, PATH, '{"a": 1, "b": 1}')
    put(node, keys({"/a": 2, "/b": 2}))
    (node / PATH[1:]).write_text('{"a": 3, "b": 2}')
    outcome = revert(root=str(node))
    assert text(node) == '{"a": 3, "b": 1}'
    assert item(outcome)["note"] == "/a was changed since by someone else: left"


def test_a_key_that_left_its_entry_goes_back_and_the_others_stay(node: Path) -> None:
    plant(node, PATH, '{"a": 1, "b": 1}')
    before = fingerprint(node)
    put(node, keys({"/a": 2, "/b": 2}))
    outcome = put(node, keys({"/b": 2}))
    assert json.loads(text(node)) == {"a": 1, "b": 2}
    assert item(outcome)["before"] == {"/a": 2}
    assert not put(node, keys({"/b": 2})).changed
    revert(root=str(node))
    assert fingerprint(node) == before


def test_two_slices_share_a_file_and_go_in_either_order(node: Path) -> None:
    plant(node, PATH, '{ "theirs": 1 }')
    before = fingerprint(node)
    for first, second in (("one", "two"), ("two", "one")):
        put(node, keys({"/a": 1}), name="one")
        put(node, keys({"/b": 2}), name="two")
        assert json.loads(text(node)) == {"theirs": 1, "a": 1, "b": 2}
        revert([first], root=str(node))
        assert json.loads(text(node)) == {"theirs": 1, **({"b": 2} if first == "one" else {"a": 1})}
        revert([second], root=str(node))
        assert fingerprint(node) == before


def test_two_slices_in_one_run_both_reach_a_file_that_one_of_them_makes(node: Path) -> None:
    slices = {"one": [keys({"/a": 1})], "two": [keys({"/b": 2})]}
    before = fingerprint(node)
    outcome = apply(slices, root=str(node))
    assert outcome.failures == ()
    assert json.loads(text(node)) == {"a": 1, "b": 2}
    assert not apply(slices, root=str(node)).changed
    revert(root=str(node))
    assert fingerprint(node) == before


def test_a_key_that_somebody_sets_while_the_run_is_at_work_is_not_overwritten(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = plant(node, PATH, '{"a": 1, "b": 1}')
    real = record.Record.save

    def meanwhile(self: record.Record, at: Node) -> None:
        real(self, at)
        path.write_text('{"a": 7, "b": 1}')

    monkeypatch.setattr(record.Record, "save", meanwhile)
    (failure,) = put(node, keys({"/a": 2, "/b": 2})).failures
    assert failure.why == f"{PATH}, /a changed while this run was at work"
    assert text(node) == '{"a": 7, "b": 1}'


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('{\n "a": 1,\n}', f"{PATH}, line 3, column 1: "),
        ('{"a": 1, "a": 2}', f"{PATH}: the key 'a' stands there twice"),
        ('{"a": NaN}', f"{PATH}: NaN is no JSON"),
        ("[1]", f"{PATH} holds no JSON object"),
        (b'{\n"a": "\xff"}', f"{PATH}, line 2: this is not UTF-8"),
        ("[" * 100_000, f"{PATH}: "),
    ],
)
def test_what_is_no_json_object_is_refused_with_its_place_and_left(
    node: Path, content: str | bytes, why: str
) -> None:
    plant(node, PATH, content)
    before = fingerprint(node)
    for check in (True, False):
        (failure,) = put(node, keys({"/b": 1}), check=check).failures
        assert failure.why.startswith(why)
        assert "mend the file" in failure.remedy
    assert fingerprint(node) == before


@pytest.mark.parametrize(
    ("content", "pointer", "what"),
    [
        ('{"a": "text"}', "/a/b", "neither an object nor a list"),
        ('{"a": [1]}', "/a/1", "a list without that element"),
        ('{"a": [1]}', "/a/-", "a list without that element"),
        ('{"a": [1]}', "/a/b/c", "a list without that element"),
    ],
)
def test_a_pointer_through_something_else_is_refused_in_a_check_too(
    node: Path, content: str, pointer: str, what: str
) -> None:
    plant(node, PATH, content)
    for check in (True, False):
        (failure,) = put(node, keys({pointer: 1}), check=check).failures
        assert failure.why.endswith(what)
    assert text(node) == content


def test_an_element_of_a_list_and_names_with_slash_and_tilde_are_reached(node: Path) -> None:
    plant(node, PATH, '{"a": [{"x": 1}, 2], "c/d": {"m~n": 8}}')
    put(node, keys({"/a/0/x": 5, "/a/1": 6, "/c~1d/m~0n": 7}))
    assert json.loads(text(node)) == {"a": [{"x": 5}, 6], "c/d": {"m~n": 7}}


def test_true_is_not_one_and_an_empty_file_is_an_empty_object(node: Path) -> None:
    plant(node, PATH, '{"a": 1}')
    assert put(node, keys({"/a": True})).changed
    assert text(node) == '{"a": true}'
    plant(node, "/etc/empty.json", "\n")
    put(node, {"kind": "json_keys", "path": "/etc/empty.json", "keys": {"/a": None}}, name="other")
    assert (node / "etc/empty.json").read_text() == '{\n    "a": null\n}\n'


def test_secret_keys_are_never_shown(node: Path) -> None:
    plant(node, PATH, '{"token": "hunter1"}')
    outcome = put(node, keys({"/token": "hunter2"}, secret=True))
    assert "hunter" not in str(outcome.to_json())
    assert item(outcome)["after"] == {"/token": "(secret)"}


def test_a_key_under_a_whole_file_of_another_slice_is_refused(node: Path) -> None:
    with pytest.raises(InputError) as caught:
        apply({"one": [file_entry(PATH, "{}\n")], "two": [keys({"/a": 1})]}, root=str(node))
    assert caught.value.where == "slices.two[0]"
    assert caught.value.why == f"slice two and slice one both own file {PATH} a (see slices.one[0])"
    with pytest.raises(InputError, match=r"both own file .* a b"):
        apply({"one": [keys({"/a": {}})], "two": [keys({"/a/b": 1})]}, root=str(node))


def test_a_whole_file_that_becomes_keys_has_to_be_reverted_first(node: Path) -> None:
    put(node, file_entry(PATH, "{}\n"))
    with pytest.raises(InputError) as caught:
        put(node, keys({"/a": 1}))
    assert caught.value.remedy == "revert slice part first, so that it is put back before"
    assert text(node) == "{}\n"


def test_a_key_that_moves_to_another_slice_of_the_same_run_is_refused(node: Path) -> None:
    apply({"one": [keys({"/a": 1, "/b": 2})], "two": [keys({"/c": 3})]}, root=str(node))
    with pytest.raises(InputError, match="slice two and slice one both own"):
        apply({"one": [keys({"/a": 1})], "two": [keys({"/b": 2, "/c": 3})]}, root=str(node))


def test_a_file_of_keys_that_moves_to_another_slice_keeps_its_prior_values(node: Path) -> None:
    plant(node, PATH, '{"a": 1}')
    before = fingerprint(node)
    apply({"one": [keys({"/a": 2, "/b": 2})]}, root=str(node))
    outcome = apply({"one": [], "two": [keys({"/a": 3})]}, root=str(node))
    assert json.loads(text(node)) == {"a": 3}
    assert items(outcome, "one") == {}
    revert(["one"], root=str(node))
    assert json.loads(text(node)) == {"a": 3}
    revert(["two"], root=str(node))
    assert fingerprint(node) == before


def test_the_old_time_comes_back_with_the_last_key_only(node: Path) -> None:
    path = plant(node, PATH, '{"a": 1}')
    put(node, keys({"/a": 2}))
    assert path.stat().st_mtime_ns != LONG_AGO
    revert(root=str(node))
    assert path.stat().st_mtime_ns == LONG_AGO


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12
)


@settings(max_examples=40)
@given(st.dictionaries(st.text(), VALUES), st.sampled_from([None, 1, 4, "\t"]), st.booleans())
def test_a_text_that_is_read_and_written_means_the_same_to_pythons_own_reader(
    value: dict[str, Any], indent: int | str | None, ascii_only: bool
) -> None:
    # Python may write a lone surrogate as it stands, which no file can hold.
    source = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "replace")
    written = jsontext.dump(jsontext.load(source, "x"))
    assert json.loads(written) == json.loads(source)
    assert list(json.loads(written)) == list(json.loads(source))
    if indent is not None and not ascii_only and all(value.values()):
        assert written == source


@given(VALUES, VALUES)
def test_sameness_is_that_of_the_texts_but_for_the_order_of_keys(one: Any, other: Any) -> None:
    assert jsontext.same(one, one)
    assert jsontext.same(json.loads(json.dumps(one)), one)
    if json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True):
        assert jsontext.same(one, other)
    elif jsontext.same(one, other):  # 1, 1.0 and 1e+0 are the same number
        assert re.search(r"\d\.\d|\de\+", json.dumps([one, other]))
