#!/usr/bin/python3
"""A stand-in for nvidia-ctk: it writes the files that the real one writes, in their form."""

import json
import os
import re
import sys

PCI = "/sys/bus/pci/devices"


def text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def gpus() -> list[str]:
    return [
        name
        for name in sorted(os.listdir(PCI))
        if text(f"{PCI}/{name}/vendor") == "0x10de"
        and text(f"{PCI}/{name}/class").startswith(("0x0302", "0x0300"))
    ]


def cdi(output: str | None) -> int:
    if not text("/sys/module/nvidia/version") and not re.search(
        r"Module", text("/proc/driver/nvidia/version")
    ):
        print("failed to generate CDI spec: failed to initialize NVML: Driver Not Loaded", file=sys.stderr)
        return 1
    lines = ["cdiVersion: 0.5.0", "kind: nvidia.com/gpu", "devices:"]
    for index, _ in enumerate(gpus()):
        lines += [
            f'- name: "{index}"',
            "  containerEdits:",
            "    deviceNodes:",
            f"    - path: /dev/nvidia{index}",
        ]
    page = "\n".join(lines) + "\n"
    if not output:
        sys.stdout.write(page)
        return 0
    os.makedirs(os.path.dirname(output), exist_ok=True)
    with open(output, "w", encoding="utf-8") as file:
        file.write(page)
    return 0


def runtime(name: str, path: str) -> int:
    if name != "docker":
        print(f"unrecognized runtime '{name}'", file=sys.stderr)
        return 1
    try:
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
    except FileNotFoundError:
        values = {}
    except ValueError as error:
        print(f"unable to load config for runtime docker: {error}", file=sys.stderr)
        return 1
    values.setdefault("runtimes", {})["nvidia"] = {"args": [], "path": "nvidia-container-runtime"}
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(values, file, indent=4)
        file.write("\n")
    print(f"Wrote updated config to {path}\nIt is recommended that docker daemon be restarted.")
    return 0


def main(argv: list[str]) -> int:
    options = dict(arg[2:].split("=", 1) for arg in argv if arg.startswith("--") and "=" in arg)
    words = [arg for arg in argv if not arg.startswith("--")]
    if argv == ["--version"]:
        print(
            f"NVIDIA Container Toolkit CLI version {text('/usr/share/nvidia-ctk/version').rpartition('-')[0]}"
        )
        return 0
    if words[:2] == ["cdi", "generate"]:
        return cdi(options.get("output"))
    if words[:2] == ["runtime", "configure"]:
        return runtime(options.get("runtime", "docker"), options.get("config", "/etc/docker/daemon.json"))
    print(f"No help topic for '{' '.join(argv)}'", file=sys.stderr)
    return 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
