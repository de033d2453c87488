"""A package archive made here: signed, served over HTTP inside the lab's network, stand-ins under the vendor's names.

Debian has none of the packages that a GPU node gets from NVIDIA. The stand-ins have the real names, versions, relations
and units, and nothing of the vendor's inside: some carry tools of ours that answer as the real ones do (see standins/).
Versions: NVIDIA's repositories and Azure's image recipes of mid-2026.
"""

from __future__ import annotations

import base64
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import namespaces, processes
from .errors import LabError
from .fabric import CONTROLLER, Fabric
from .lab import Node
from .run import Run
from .shell import ask, call

STANDINS = Path(__file__).with_name("standins")
SUITE = "lab"
COMPONENT = "main"
KEYRING = "/etc/apt/keyrings/railwright-lab.gpg"
PORT = 80
DRIVER = "580.173.02"
OLDER_DRIVER = "580.126.20"
TOOLKIT = "1.18.1-1"


@dataclass(frozen=True)
class Package:
    """fields: more of control(5). files: path to a text or a file of standins/; those in a bin folder may be run."""

    name: str
    version: str
    about: str
    fields: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str | Path] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)


def _tool(name: str) -> Path:
    return STANDINS / name


def _unit(description: str, command: str) -> str:
    return (
        f"[Unit]\nDescription={description}\n\n[Service]\nType=simple\nExecStart={command}\nRestart=no\n\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )


# What a boot does with the module that lies there: no lab node can load one, so its place below /sys tells of one.
MODULE_UNIT = "nvidia-module-standin.service"
_ENABLED = f"#!/bin/sh\n[ ! -d /run/systemd/system ] || systemctl -q enable {MODULE_UNIT}\n"


def _module(version: str, loads: bool) -> Mapping[str, str]:
    place = "/sys/module/nvidia"
    load = f"mkdir -p {place}/holders && echo {version} >{place}/version && echo 0 >{place}/refcnt"
    command = f"/bin/sh -c '{load}'" if loads else "/bin/false"
    unit = (
        f"[Unit]\nDescription=The module nvidia\n\n[Service]\nType=oneshot\nExecStart={command}\n\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )
    return {f"lib/systemd/system/{MODULE_UNIT}": unit}


def driver_set(version: str, loads: bool = True) -> list[Package]:
    """Driver, fabric manager and what must be of the driver's version to the last digit. loads: whether the module of
    this version does what a module should at boot."""
    full = f"{version}-1"
    exactly = f"(= {full})"
    modules = f"nvidia-kernel-open-dkms {exactly}"
    return [
        Package("nvidia-open", full, "driver with open kernel modules, metapackage",
                {"Depends": f"{modules}, nvidia-utils {exactly}, nvidia-persistenced {exactly}"}),
        Package("nvidia-kernel-open-dkms", full, "open kernel modules, as source", {"Conflicts": "nvidia-kernel-dkms"},
                _module(version, loads), {"postinst": _ENABLED}),
        Package("nvidia-utils", full, "nvidia-smi", {}, {"usr/bin/nvidia-smi": _tool("nvidia_smi.py")}),
        Package("nvidia-persistenced", full, "keeps the driver's state", {}, {
            "lib/systemd/system/nvidia-persistenced.service":
                _unit("NVIDIA Persistence Daemon", "/usr/bin/sleep infinity")}),
        Package("nvidia-fabricmanager", full, "brings NVSwitches up", {}, {
            "usr/bin/nv-fabricmanager": _tool("nv_fabricmanager.py"),
            "usr/share/nvidia/nvswitch/version": f"{version}\n",
            "lib/systemd/system/nvidia-fabricmanager.service":
                _unit("NVIDIA fabric manager service", "/usr/bin/nv-fabricmanager")}),
        Package("nvidia-imex", full, "memory export between nodes"),
        Package("libnvidia-nscq", full, "queries NVSwitches"),
        Package(f"nvidia-driver-pinning-{version}", full, "pins the driver", {}, {
            "etc/apt/preferences.d/nvidia-driver-pinning":
                f"Package: nvidia-open nvidia-kernel-open-dkms nvidia-utils nvidia-persistenced nvidia-fabricmanager"
                f" nvidia-imex libnvidia-nscq\nPin: version {version}-*\nPin-Priority: 1000\n"}),
    ]  # fmt: skip


def _toolkit(version: str) -> list[Package]:
    return [
        Package("nvidia-container-toolkit", version, "GPUs in containers",
                {"Depends": f"nvidia-container-toolkit-base (= {version}), libnvidia-container-tools (= {version})"}),
        Package("nvidia-container-toolkit-base", version, "nvidia-ctk", {}, {
            "usr/bin/nvidia-ctk": _tool("nvidia_ctk.py"), "usr/share/nvidia-ctk/version": f"{version}\n"}),
        Package("libnvidia-container-tools", version, "command line of libnvidia-container",
                {"Depends": f"libnvidia-container1 (= {version})"}),
        Package("libnvidia-container1", version, "puts the driver into containers"),
    ]  # fmt: skip


def standins() -> list[Package]:
    """The archive's packages. Of the driver there are two versions, of the container toolkit a good and a bad one."""
    return [
        Package("cuda-keyring", "1.1-1", "the repository's key"),
        *driver_set(OLDER_DRIVER),
        *driver_set(DRIVER),
        # Ubuntu's own archive keeps the branch in the name; the older name drags the newer branch in.
        Package("nvidia-fabricmanager-580", f"{OLDER_DRIVER}-0ubuntu0.24.04.1", "fabric manager, by branch",
                {"Provides": f"nvidia-fabricmanager (= {OLDER_DRIVER}-0ubuntu0.24.04.1)",
                 "Conflicts": "nvidia-fabricmanager"}),
        Package("nvidia-fabricmanager-570", f"{OLDER_DRIVER}-0ubuntu0.24.04.1", "transitional package",
                {"Depends": "nvidia-fabricmanager-580"}),
        Package("nvlsm", "2025.10.11-1", "NVLink subnet manager"),
        Package("libnvsdm", f"{DRIVER}-1", "NVSwitch device monitoring"),
        *_toolkit("1.17.7-1"),
        *_toolkit(TOOLKIT),
        Package("datacenter-gpu-manager-4-core", "1:4.6.0-1", "DCGM"),
        Package("datacenter-gpu-manager-4-cuda13", "1:4.6.0-1", "DCGM for CUDA 13",
                {"Depends": "datacenter-gpu-manager-4-core (= 1:4.6.0-1)"}),
        Package("cuda-toolkit-13-0", "13.0.2-1", "CUDA"),
        Package("libnccl2", "2.30.4-1+cuda13.0", "NCCL"),
        Package("libnccl-dev", "2.30.4-1+cuda13.0", "NCCL, headers", {"Depends": "libnccl2 (= 2.30.4-1+cuda13.0)"}),
        Package("gdrcopy", "2.6-1", "copies with GPUDirect RDMA"),
        Package("doca-ofed", "3.2.3-1", "drivers of ConnectX", {"Depends": "mlnx-tools, mstflint-standin"}),
        Package("mlnx-tools", "25.10-0.2510", "mlnx_qos", {}, {"usr/bin/mlnx_qos": _tool("mlnx_qos.py")}),
        # Debian has a real mstflint, which needs a card; this one must not take its name.
        Package("mstflint-standin", "4.34.0-1", "mstconfig", {"Conflicts": "mstflint", "Provides": "mstflint"},
                {"usr/bin/mstconfig": _tool("mstconfig.py"), "usr/bin/mstfwreset": _tool("mstfwreset.py")}),
    ]  # fmt: skip


@dataclass(frozen=True)
class Archive:
    """folder: what is served; keyring: the public key, as apt takes it."""

    folder: Path
    keyring: Path


def make(folder: Path, packages: Sequence[Package]) -> Archive:
    """Builds the packages and signs their index. folder: absent. Raises LabError."""
    architecture = call(["dpkg", "--print-architecture"]).strip()
    pool = folder / "archive/pool"
    pool.mkdir(parents=True)
    for package in packages:
        build(package, architecture, folder / "scratch", pool)
    shutil.rmtree(folder / "scratch")
    top = folder / "archive"
    index = top / "dists" / SUITE / COMPONENT / f"binary-{architecture}"
    index.mkdir(parents=True)
    (index / "Packages").write_text(call(["apt-ftparchive", "packages", "pool"], cwd=top), encoding="utf-8")
    release = top / "dists" / SUITE
    words = {"Origin": "Railwright lab", "Suite": SUITE, "Codename": SUITE, "Architectures": architecture}
    words["Components"] = COMPONENT
    options = [
        item for name, value in words.items() for item in ("-o", f"APT::FTPArchive::Release::{name}={value}")
    ]
    (release / "Release").write_text(
        call(["apt-ftparchive", *options, "release", str(release)]), encoding="utf-8"
    )
    keyring = folder / "key.gpg"
    sign(release, folder / "gnupg", keyring)
    return Archive(top, keyring)


def build(package: Package, architecture: str, scratch: Path, pool: Path) -> Path:
    """One .deb. Raises LabError."""
    tree = scratch / f"{package.name}_{package.version}"
    control = {
        "Package": package.name,
        "Version": package.version,
        "Architecture": architecture,
        "Maintainer": "Railwright lab <lab@example.invalid>",
        **package.fields,
        "Description": f"stand-in: {package.about}",
    }
    (tree / "DEBIAN").mkdir(parents=True)
    tree.chmod(0o755)
    page = "".join(f"{name}: {value}\n" for name, value in control.items())
    (tree / "DEBIAN/control").write_text(page, encoding="utf-8")
    conffiles = [f"/{path}\n" for path in package.files if path.startswith("etc/")]
    if conffiles:
        (tree / "DEBIAN/conffiles").write_text("".join(conffiles), encoding="utf-8")
    for name, text in package.scripts.items():
        (tree / "DEBIAN" / name).write_text(text, encoding="utf-8")
        (tree / "DEBIAN" / name).chmod(0o755)
    for path, content in package.files.items():
        target = tree / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(
            content if isinstance(content, str) else content.read_text("utf-8"), encoding="utf-8"
        )
        target.chmod(0o755 if "bin" in target.parent.name else 0o644)
    name = f"{package.name}_{package.version.replace(':', '%3a')}_{architecture}.deb"
    call(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", str(tree), str(pool / name)])
    return pool / name


def sign(release: Path, home: Path, keyring: Path) -> None:
    """InRelease and Release.gpg, by a key made here. Raises LabError."""
    home.mkdir(mode=0o700)
    environment = {**os.environ, "GNUPGHOME": str(home)}
    gpg = ["gpg", "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""]
    page = str(release / "Release")
    try:
        call([*gpg, "--quick-generate-key", "lab@example.invalid", "ed25519", "sign", "1y"], env=environment)
        call(
            [*gpg, "--clearsign", "--output", str(release / "InRelease"), page],
            env=environment,
        )
        call(
            [*gpg, "--detach-sign", "--output", str(release / "Release.gpg"), page],
            env=environment,
        )
        call([*gpg, "--output", str(keyring), "--export"], env=environment)
    finally:
        ask(["gpgconf", "--kill", "all"], env=environment)


def serve(run: Run, archive: Archive) -> str:
    """Serves it where the run's nodes can reach it, and nobody else. Returns its address. Raises LabError."""
    fabric = Fabric(run).pid
    argv = [
        sys.executable,
        "-m",
        "http.server",
        str(PORT),
        "--bind",
        CONTROLLER,
        "--directory",
        str(archive.folder),
    ]
    processes.launch(run.record("packages"), namespaces.within(fabric, *argv), run.folder / "packages.log")
    address = f"http://{CONTROLLER}"
    ask_once = [
        sys.executable,
        "-c",
        f"import urllib.request; urllib.request.urlopen('{address}/dists/{SUITE}/Release')",
    ]
    for _ in range(100):
        if ask(namespaces.within(fabric, *ask_once)).returncode == 0:
            return address
        time.sleep(0.1)
    raise LabError("packages", "are not served", f"see {run.folder / 'packages.log'}")


def subscribe(node: Node, archive: Archive, address: str) -> None:
    """Tells a node's apt of the archive: its key, its place. Raises LabError."""
    key = base64.b64encode(archive.keyring.read_bytes()).decode()
    stanza = (
        f"Types: deb\\nURIs: {address}\\nSuites: {SUITE}\\nComponents: {COMPONENT}\\nSigned-By: {KEYRING}\\n"
    )
    node.must(
        f"mkdir -p /etc/apt/keyrings && echo {key} | base64 -d > {KEYRING} && "
        f"printf '{stanza}' > /etc/apt/sources.list.d/railwright-lab.sources && apt-get -qq update"
    )
