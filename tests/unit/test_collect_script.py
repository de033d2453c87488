"""`railwright collect`: the script as one readable file, the verb's words and exit codes, and the time for tools."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from railwright.cli import main
from railwright.collect import script, tools
from railwright.node.model import Facts, Host, Nic, Tool, Witness
from tests.machinery import build

from .collect_support import KEY

PROJECT = Path(__file__).resolve().parents[2]
SOURCE = PROJECT / "src"
MACHINES = PROJECT / "tests/machines"
# What reaches a network, or changes what other processes see.
OUTWARD = {
    "asyncio",
    "ftplib",
    "http",
    "smtplib",
    "socket",
    "socketserver",
    "ssl",
    "urllib",
    "xmlrpc",
    "ctypes",
}


def sources() -> dict[str, str]:
    """The sources as the script holds them."""
    found = {}
    for node in ast.parse(script.build()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            key = ast.literal_eval(node.targets[0].slice)
            found[key] = ast.literal_eval(node.value)
    return found


def test_the_script_holds_the_sources_word_for_word_and_no_writer_of_a_node() -> None:
    held = sources()
    for path, text in held.items():
        assert text == (SOURCE / path).read_text(encoding="utf-8"), path
    assert "railwright/node/discover/pci.py" in held
    assert "railwright/collect/command.py" in held
    assert [path for path in held if "/state/" in path or "/plan/" in path or path.endswith("boot.py")] == []


def test_a_person_can_read_it() -> None:
    text = script.build()
    assert text.startswith("#!/bin/sh\n")
    lines = text.splitlines()
    assert all(line.replace("\t", " ").isprintable() for line in lines)
    # A file's first line stands behind its name.
    assert max(len(line) for line in lines if not line.startswith("SOURCES[")) <= 130


def test_the_script_imports_only_the_standard_library_and_nothing_that_reaches_out() -> None:
    names: set[str] = set()
    for text in sources().values():
        for node in ast.walk(ast.parse(text, feature_version=(3, 9))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names.add((node.module or "").partition(".")[0])
    assert names <= set(sys.stdlib_module_names)
    assert names.isdisjoint(OUTWARD)


def test_one_place_of_the_script_opens_a_file_for_writing() -> None:
    found = [
        path for path, text in sources().items() if "O_CREAT" in text or "write_text" in text or '"w"' in text
    ]
    # tarfile's "w" there goes to memory.
    assert found == ["railwright/collect/bundle.py"]


def test_a_source_that_cannot_stand_in_the_script_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = tmp_path / "railwright/collect/bad.py"
    bad.parent.mkdir(parents=True)
    bad.write_text("x = '''y'''\n", encoding="utf-8")
    monkeypatch.setattr(script, "PACKAGE", tmp_path / "railwright")
    with pytest.raises(ValueError, match="cannot stand in a raw string"):
        script._section(bad)


def test_the_verb_prints_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect"]) == 0
    assert capsys.readouterr().out == script.build()


@pytest.mark.parametrize(
    "option", [("--output", "x"), ("--dry-run",), ("--root", "/tmp"), ("--key-file", "k")]
)
def test_an_option_of_a_run_without_run_is_code_two(
    option: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["collect", *option]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"{option[0]}: is for a run" in said.err


def test_the_verb_collects_a_tree_and_plan_reads_the_bundle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree, path, key = tmp_path / "tree", tmp_path / "b.tar.gz", tmp_path / "key"
    build(MACHINES / "2s_4xh100pcie_2xcx6", tree)
    key.write_bytes(KEY)
    run = ["collect", "--run", "--root", str(tree), "--key-file", str(key)]
    assert main(run) == 2
    assert "--output: is missing" in capsys.readouterr().err
    assert main([*run, "--output", str(path)]) == 0
    assert f"Written: {path}" in capsys.readouterr().out
    assert main([*run, "--output", str(path)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(["plan", str(path)]) == 0
    assert "GPU3" in capsys.readouterr().out
    assert main(["plan", "--format", "lspci", str(path)]) == 2


def test_a_full_disk_leaves_no_half_a_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = tmp_path / "tree"
    build(MACHINES / "2s_4xh100pcie_2xcx6", tree)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert main(["collect", "--run", "--root", str(tree), "--output", str(tmp_path / "b")]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


FACTS = Facts("railwright.facts/1", (Witness("sysfs", "/"),))


def test_nvidia_smi_is_not_asked_where_it_would_load_the_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("nvidia-smi", "lspci"):
        (tmp_path / name).write_text("#!/bin/sh\necho said\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    told = {tool.name: tool.output for tool in tools.ask(FACTS)}
    assert told["lspci"] == "said\n"
    assert not any(name.startswith("nvidia-smi") for name in told)
    told = {tool.name: tool.output for tool in tools.ask(Facts("x", (), Host(driver="550.54.14")))}
    assert told["nvidia-smi-full"] == "said\n"


def test_once_the_time_is_spent_no_tool_is_started_and_the_rest_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "lspci").write_text(
        f"#!/bin/sh\ntouch {tmp_path}/started\nexec sleep 600\n", encoding="utf-8"
    )
    (tmp_path / "show_gids").write_text(f"#!/bin/sh\ntouch {tmp_path}/late\n", encoding="utf-8")
    for name in ("lspci", "show_gids"):
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    told = {tool.name: tool for tool in tools.ask(FACTS, budget=1.0)}
    assert (tmp_path / "started").exists()
    assert not (tmp_path / "late").exists()
    assert (told["lspci"].code, told["show_gids"].code) == (124, 124)
    why = "stopped, or not started, for its time or the size of its output"
    assert f"show_gids: {why}" in tools.unanswered(tuple(told.values()))


def test_once_the_room_is_spent_no_tool_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "lspci").write_text("#!/bin/sh\nyes 18:00.0\n", encoding="utf-8")
    (tmp_path / "show_gids").write_text(f"#!/bin/sh\ntouch {tmp_path}/late\n", encoding="utf-8")
    for name in ("lspci", "show_gids"):
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    told = {tool.name: tool for tool in tools.ask(FACTS, room=1000)}
    assert (len(told["lspci"].output), told["lspci"].code) == (1000, 124)
    assert not (tmp_path / "late").exists()
    assert told["show_gids"].code == 124


def test_qos_is_asked_of_each_roce_port_once_and_without_time_nothing_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[str] = []

    def answered(name: str, argv: tuple[str, ...], *_: object) -> Tool:
        started.append(name)
        return Tool(name, argv, 0, "")

    monkeypatch.setattr(tools, "run_tool", answered)
    nics = (
        Nic("mlx5_0", rdma="mlx5_0", netdev="enp1", link_layer="Ethernet"),
        Nic("mlx5_1", rdma="mlx5_1", netdev="ib0", link_layer="InfiniBand"),
        Nic("eno1", netdev="eno1", link_layer="Ethernet"),
    )
    facts = Facts("railwright.facts/1", (), nics=nics)
    assert [tool.argv for tool in tools.ask(facts, budget=0) if tool.name.startswith("mlnx")] == [
        ("mlnx_qos", "-i", "enp1")
    ]
    assert started == []
    tools.ask(facts)
    assert [name for name in started if name.startswith("mlnx")] == ["mlnx_qos-enp1"]


@pytest.mark.parametrize("version", ["3.9", "3.13"])
def test_the_script_runs_under_the_oldest_and_the_newest_python(version: str) -> None:
    found = subprocess.run(
        ["sh", str(PROJECT / "tools/find_python.sh"), version], capture_output=True, text=True, check=False
    )
    if found.returncode != 0:
        pytest.skip(f"Python {version} is not on this machine")
    # From a pipe: Python alone runs it too.
    done = subprocess.run(
        [found.stdout.strip(), "-I", "-S", "-B", "-", "--help"],
        input=script.build(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--dry-run" in done.stdout
