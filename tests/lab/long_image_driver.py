"""An image with a driver: baked where no GPU is, by the real apt from the lab's stand-ins; then booted on machines with
NVSwitches and without. Without an emulator, as in `long_image_recorded.py`."""

from __future__ import annotations

import dataclasses
import functools
import http.server
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from railwright import image
from railwright.fleet import steps
from railwright.image import tarball
from railwright.image.inside import Room
from railwright.node.model import Policy
from railwright.plan import fabric_manager
from tests.lab import packages
from tests.lab.long_image import EPOCH, Bake, baked, files, recipe
from tests.lab.long_image_recorded import Node
from tests.lab.shell import call

__all__ = ["baked", "files"]
FULL = f"{packages.DRIVER}-1"
GATE = ["slurmd.service"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The stand-ins' archive on this machine's loopback, as a policy names it."""
    made = packages.make(tmp_path_factory.mktemp("archive") / "made", packages.standins())
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(made.folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    key = subprocess.run(
        ["gpg", "--batch", "--no-default-keyring", "--keyring", str(made.keyring), "--armor", "--export"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    yield {
        "name": "lab", "uris": f"http://127.0.0.1:{server.server_address[1]}", "suites": packages.SUITE,
        "components": packages.COMPONENT, "key": key,
    }  # fmt: skip
    server.shutdown()
    server.server_close()


def bake(
    baked: Bake, files: Path, work: Path, source: dict[str, str], **more: Any
) -> tuple[image.Baked, dict[str, Any]]:
    """An image with the driver, on the root file system that is there; and its manifest."""
    work.mkdir()
    for stage in baked.work.glob("rootfs-*"):
        call(["cp", "-a", str(stage), str(work)])
    asked = {
        "expect": {"gpus": 8, "rails": 8}, "boot": {"gate": GATE}, "software": {"sources": [source]},
        "driver": {"version": packages.DRIVER, "packages": ["nvidia-utils"]}, **more,
    }  # fmt: skip
    page = dataclasses.replace(recipe(files), disk_gib=None, sbom=())
    made = image.bake(page, Policy.read(steps.node_policy(asked), "policy"), work, print)
    assert "rootfs" not in made.made
    return made, json.loads((made.folder / "manifest.json").read_text("utf-8"))


def node(made: image.Baked, place: Path, machine: str) -> Node:
    place.mkdir()
    tarball.unpack(made.folder / "root.tar.gz", place / "tree")
    (place / "scratch").mkdir()
    woken = Node(Room(place / "tree", place / "scratch", EPOCH), place / "machine")
    woken.put_into(machine)
    return woken


def of_the_driver(page: dict[str, Any]) -> list[str]:
    """What the boot finds wrong with the driver's set."""
    return [
        f"{row['code']}: {row['why']}"
        for row in page["findings"]
        if row["severity"] == "error" and row["code"].partition(".")[0] in ("nvidia_driver", "fabric_manager")
    ]


def without_switches(woken: Node) -> None:
    """The same machine with its NVSwitches taken out."""
    devices = woken.machine / "sys/bus/pci/devices"
    for place in sorted(devices.iterdir()):
        if (place / "class").read_text("ascii").startswith("0x0680") and "0x10de" in (
            place / "vendor"
        ).read_text("ascii"):
            shutil.rmtree(place.resolve())
            place.unlink()


pytestmark = pytest.mark.skipif("RAILWRIGHT_IMAGE" in os.environ, reason="RAILWRIGHT_IMAGE names an image")


def test_an_image_for_nvswitches_has_the_whole_set_and_every_chassis_finds_it_whole(
    baked: Bake, files: Path, source: dict[str, str], tmp_path: Path
) -> None:
    made, told = bake(baked, files, tmp_path / "work", source, image={"may_have": ["nvswitch"]})
    listed = {row["name"].partition(":")[0]: row for row in told["packages"]}
    for name in ("nvidia-open", "nvidia-kernel-open-dkms", "nvidia-persistenced", "nvidia-fabricmanager"):
        assert listed[name]["version"] == FULL, name
    assert [line for line in made.warnings if line.startswith("nvidia_driver.no_gpu")] != []
    # Its policy names no nvlsm, so that it is no image for NVLink 5.
    told_of = [line.partition(":")[0] for line in made.warnings if "fabric_manager" in line]
    assert told_of == ["fabric_manager.nvlsm.no_gpu"]
    with_switches = node(made, tmp_path / "with", "2s_8xh100_10xcx7")
    assert (with_switches.room.tree / fabric_manager.CONDITION.lstrip("/")).is_file()
    lacking = node(made, tmp_path / "without", "2s_8xh100_10xcx7")
    without_switches(lacking)
    for woken in (with_switches, lacking):
        _, page = woken.boot()
        print(
            "\n",
            page["result"],
            page["words"],
            {name: part["changed"] for name, part in page["slices"].items()},
        )
        assert (page["phase"], page["failures"], page["shape"]["gpus"]) == ("ended", 0, 8)
        assert page["result"] in ("good", "findings")
        assert of_the_driver(page) == []


def test_an_image_that_was_not_asked_for_nvswitches_says_so_at_the_bake_and_at_the_boot(
    baked: Bake, files: Path, source: dict[str, str], tmp_path: Path
) -> None:
    made, told = bake(baked, files, tmp_path / "work", source)
    assert "nvidia-fabricmanager" not in {row["name"].partition(":")[0] for row in told["packages"]}
    (line,) = (line for line in made.warnings if line.startswith("fabric_manager.no_gpu"))
    assert "policy.image.may_have: [nvswitch]" in line
    assert line in told["warnings"]
    woken = node(made, tmp_path / "with", "2s_8xh100_10xcx7")
    status, page = woken.boot()
    print("\n", page["result"], of_the_driver(page))
    assert (status, page["result"], page["failures"]) == (1, "findings", 0)
    (told_of_set,) = (line for line in of_the_driver(page) if line.startswith("nvidia_driver.version"))
    assert f"nvidia-fabricmanager is not there, planned {FULL}" in told_of_set
