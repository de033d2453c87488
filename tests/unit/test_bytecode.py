"""The package's bytecode, kept from one call to the next: used where it is root's own and whole, and nowhere else."""

from __future__ import annotations

import builtins
import importlib
import marshal
import os
import subprocess
import sys
import traceback
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from railwright.node import bytecode

PROJECT = Path(__file__).resolve().parents[2]
SOURCE = "WORD = 'first'\n\n\ndef fail():\n    raise ValueError(WORD)\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "run").mkdir()
    place = tmp_path / "run/railwright.code.x"
    monkeypatch.setattr(bytecode, "PLACE", str(place))
    monkeypatch.setattr(bytecode, "_PLACES", str(tmp_path / "run/railwright.code."))
    return place


Call = Callable[..., "tuple[object, bool]"]


@pytest.fixture
def call(tmp_path: Path, place: Path) -> Iterator[Call]:
    """One call: the part's WORD, and whether its source had to be compiled."""
    number = 0
    path, hooks = list(sys.path), list(sys.meta_path)

    def once(source: str = SOURCE, keep: bool = True, may_compile: bool = True) -> tuple[object, bool]:
        nonlocal number
        number += 1
        archive = tmp_path / f"payload{number}.zip"
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("parcel/__init__.py", "")
            file.writestr("parcel/node/__init__.py", "")
            file.writestr("parcel/node/bytecode.py", "")
            file.writestr("parcel/node/part.py", source)
        forget_modules()
        sys.meta_path[:], sys.path[:] = hooks, [str(archive), *path]
        loaded = importlib.import_module("parcel.node.bytecode")
        bytecode.use(loaded.__spec__)
        with pytest.MonkeyPatch.context() as patch:
            if not may_compile:
                patch.setattr(builtins, "compile", refuse)
            part = importlib.import_module("parcel.node.part")
        (finder,) = (one for one in sys.meta_path if isinstance(one, bytecode._Finder))
        compiled = finder.code.fresh
        if keep:
            bytecode.keep()
        return part, compiled

    yield once
    forget_modules()
    sys.meta_path[:], sys.path[:] = hooks, path


def refuse(*given: object, **named: object) -> None:
    raise AssertionError("this was compiled before")


def forget_modules() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "parcel"]:
        del sys.modules[name]


def word(part: object) -> object:
    return part.WORD  # type: ignore[attr-defined]


def test_a_source_is_compiled_once(call: Call, place: Path) -> None:
    part, compiled = call()
    assert (word(part), compiled) == ("first", True)
    assert place.stat().st_mode & 0o777 == 0o600
    before = place.stat()
    part, compiled = call(may_compile=False)
    assert (word(part), compiled) == ("first", False)
    assert (place.stat().st_ino, place.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_what_is_kept_is_what_runs(call: Call, place: Path) -> None:
    """The kept code of the one source under the digest of the other shows which of both was run."""
    call()
    (key,) = bytecode._read(str(place))
    bytes_of = {key: marshal.dumps(compile("WORD = 'kept'", "x", "exec"))}
    body = marshal.dumps(bytes_of)
    place.write_bytes(bytecode._head(body) + body)
    assert word(call()[0]) == "kept"


def test_another_source_is_compiled_and_the_first_one_stays(call: Call) -> None:
    call()
    part, compiled = call("WORD = 'second'\n")
    assert (word(part), compiled) == ("second", True)
    assert call()[1] is False


def test_a_reader_keeps_nothing(call: Call, place: Path) -> None:
    call(keep=False)
    assert not place.exists()


def cut(place: Path) -> None:
    place.write_bytes(place.read_bytes()[:-9])


def turn(place: Path) -> None:
    data = bytearray(place.read_bytes())
    data[-40] ^= 1
    place.write_bytes(data)


def empty(place: Path) -> None:
    place.write_bytes(b"")


def older(place: Path) -> None:
    form, rest = place.read_bytes().split(b" ", 1)
    place.write_bytes(form + b" 0000" + rest[4:])


def shared(place: Path) -> None:
    place.chmod(0o620)


def foreign(place: Path) -> None:
    os.chown(place, 1234, 1234)


def link(place: Path) -> None:
    there = place.rename(place.with_name("elsewhere"))
    place.symlink_to(there)


def folder(place: Path) -> None:
    place.unlink()
    place.mkdir()


def pipe(place: Path) -> None:
    place.unlink()
    os.mkfifo(place)


@pytest.mark.parametrize("harm", [cut, turn, empty, older, shared, foreign, link, folder, pipe])
def test_a_file_that_is_torn_or_not_roots_own_is_left_unread(
    call: Call, place: Path, harm: Callable[[Path], None]
) -> None:
    if harm is foreign and os.geteuid() != 0:
        pytest.skip("needs root, to give a file away")
    call()
    harm(place)
    part, compiled = call()
    assert (word(part), compiled) == ("first", True)
    if harm is folder:  # in the way of the next one: nothing is half-written beside it
        assert os.listdir(place.parent) == [place.name]
        assert os.listdir(place) == []
    else:
        assert call()[1] is False


def test_what_a_killed_writer_left_is_written_anew_and_forgotten(call: Call, place: Path) -> None:
    place.with_name(f"{place.name}.new").write_bytes(b"half")
    call()
    assert os.listdir(place.parent) == [place.name]
    place.with_name("railwright.code.y").write_bytes(b"of another Python")
    bytecode.forget()
    assert os.listdir(place.parent) == []


def test_code_that_nobody_brings_any_more_goes_when_there_is_much_of_it(
    call: Call, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bytecode, "_MOST", 4000)
    for number in range(30):
        call(f"WORD = '{number}' + '{'x' * 200}'\n")
    assert place.stat().st_size < 8000
    assert call(f"WORD = '29' + '{'x' * 200}'\n")[1] is False


def test_a_traceback_shows_the_line(call: Call) -> None:
    call()
    part, _ = call()
    try:
        part.fail()  # type: ignore[attr-defined]
    except ValueError:
        assert "raise ValueError(WORD)" in traceback.format_exc()


def test_code_of_files_is_pythons_own_business() -> None:
    bytecode.use()
    assert not [one for one in sys.meta_path if isinstance(one, bytecode._Finder)]


@pytest.mark.parametrize("version", ["3.9", "3.11", "3.12", "3.13"])
def test_the_whole_package_comes_from_an_archive(tmp_path: Path, version: str) -> None:
    found = subprocess.run(
        ["sh", str(PROJECT / "tools/find_python.sh"), version], capture_output=True, text=True, check=False
    )
    if found.returncode != 0:
        pytest.skip(f"no Python {version} on this machine")
    archive = tmp_path / "payload.zip"
    names = []
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted((PROJECT / "src/railwright").rglob("*.py")):
            inside = path.relative_to(PROJECT / "src")
            if inside.parts[1] in {"node", "plan", "__init__.py"}:
                file.write(path, str(inside))
                names.append(".".join(inside.with_suffix("").parts).removesuffix(".__init__"))
    names = [name for name in names if not name.endswith("__main__")]
    code = (
        "import importlib, sys; sys.path.insert(0, sys.argv[1]); "
        "from railwright.node import bytecode; bytecode.use(); "
        "[importlib.import_module(name) for name in sys.argv[2:]]; "
        "loaded = [m for name, m in sys.modules.items() if name.startswith('railwright')]; "
        "print(sum(type(m.__loader__).__name__ == '_Loader' for m in loaded))"
    )
    done = subprocess.run(
        [found.stdout.strip(), "-I", "-c", code, str(archive), *names],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    # The package itself, its part `node` and this module are there before they can be loaded so.
    assert int(done.stdout) == len(names) - 3
