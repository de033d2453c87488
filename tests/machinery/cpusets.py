"""The kernel's two ways of writing a set of CPUs: the list (`0-3,8`) and the mask (`0000010f`)."""

from __future__ import annotations

from collections.abc import Iterable

from .errors import MachineError


def parse_list(text: str, where: str) -> tuple[int, ...]:
    """The CPUs of a list such as `0-55,112-167`, ascending. An empty text is no CPU."""
    cpus: set[int] = set()
    for item in text.split(",") if text.strip() else ():
        first, _, last = item.strip().partition("-")
        if not first.isdigit() or (last and not last.isdigit()) or int(last or first) < int(first):
            raise MachineError(where, f"'{item}' is no CPU range", "write a list such as 0-55,112-167")
        cpus.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(cpus))


def parse_mask(text: str, where: str) -> tuple[int, ...]:
    """The CPUs of a mask such as `00000000,00ffffff`, ascending."""
    digits = text.replace(",", "").strip()
    try:
        bits = int(digits, 16)
    except ValueError as error:
        raise MachineError(where, f"'{text}' is no CPU mask", "write hexadecimal words") from error
    return tuple(cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1)


def format_list(cpus: Iterable[int]) -> str:
    """`0-3,8`, as the kernel's %*pbl."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def format_mask(cpus: Iterable[int], possible: int) -> str:
    """The kernel's %*pb: words of 32 bits, the first one only as many digits as `possible` CPUs need."""
    bits = sum(1 << cpu for cpu in set(cpus))
    words = (possible + 31) // 32
    digits = [8] * words
    digits[0] = (possible - 32 * (words - 1) + 3) // 4
    return ",".join(
        f"{bits >> 32 * (words - 1 - index) & 0xFFFFFFFF:0{width}x}" for index, width in enumerate(digits)
    )
