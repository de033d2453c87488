"""What the lab's /proc/irq does with a write, against the kernel's own words in its sources and documentation."""

from __future__ import annotations

import errno

import pytest

from tests.lab.irq_table import Interrupt, Table, shown


def table(possible: int = 40, online: str = "0-35", serving: int = 3, managed: bool = False) -> Table:
    first, last = map(int, online.split("-"))
    cpus = frozenset(range(first, last + 1))
    return Table(possible, cpus, {7: Interrupt(cpus, frozenset([serving]), managed)})


def refusal(table: Table, form: str, text: str) -> int | None:
    try:
        table.set(7, table.parse_list(text) if form == "list" else table.parse_mask(text))
    except OSError as error:
        return error.errno
    return None


@pytest.mark.parametrize(
    ("form", "text", "said"),
    [
        ("list", "5", None),
        ("list", "0-3,9", None),
        ("list", "0-31:2/4", None),
        # CPU 38 is counted with but not online; with one that is online beside it, the write is fine.
        ("list", "38", errno.EINVAL),
        ("list", "5,38", None),
        ("list", "40", errno.ERANGE),
        ("list", "5-40", errno.ERANGE),
        ("list", "", errno.EINVAL),
        ("list", "nine", errno.EINVAL),
        ("list", "5-3", errno.EINVAL),
        ("list", "-1", errno.EINVAL),
        ("mask", "20", None),
        ("mask", "8,00000000", None),
        ("mask", "40,00000000", errno.EINVAL),
        ("mask", "100,00000000", errno.EOVERFLOW),
        ("mask", "1,00000000,00000000", errno.EOVERFLOW),
        ("mask", "123456789", errno.EOVERFLOW),
        ("mask", "0", errno.EINVAL),
        ("mask", "xyz", errno.EINVAL),
    ],
)
def test_a_write_is_taken_or_refused_as_a_kernel_does(form: str, text: str, said: int | None) -> None:
    assert refusal(table(), form, text) == said


def test_a_refused_write_changes_nothing() -> None:
    one = table()
    before = dict(shown(one, 7))
    for text in ("40", "38", "nine"):
        refusal(one, "list", text)
    assert shown(one, 7) == before


def test_an_interrupt_that_the_kernel_manages_is_an_input_output_error() -> None:
    assert refusal(table(managed=True), "list", "5") == errno.EIO


def test_a_cpu_without_a_free_vector_is_no_space() -> None:
    one = table()
    one.full = frozenset({5})
    assert refusal(one, "list", "5") == errno.ENOSPC
    assert refusal(one, "list", "5-6") is None
    assert shown(one, 7)["effective_affinity_list"] == "6"


def test_a_cpu_is_full_when_it_serves_all_its_vectors() -> None:
    cpus = frozenset(range(4))
    many = {number: Interrupt(cpus, frozenset([1]), False) for number in range(202)}
    one = Table(4, cpus, {**many, 900: Interrupt(cpus, frozenset([0]), False)})
    with pytest.raises(OSError, match="No space left"):
        one.set(900, frozenset([1]))
    one.set(5, frozenset([2]))
    one.set(900, frozenset([1]))
    assert one.interrupts[900].serving == {1}


def test_both_forms_show_one_set_and_one_cpu_serves_it() -> None:
    one = table()
    one.set(7, one.parse_list("8-11,32"))
    # 32 is bit 0 of the second word, 8-11 the third digit of the first; 40 CPUs need two digits of it.
    assert shown(one, 7) == {
        "smp_affinity": "01,00000f00",
        "smp_affinity_list": "8-11,32",
        "effective_affinity": "00,00000100",
        "effective_affinity_list": "8",
    }


def test_an_interrupt_stays_where_it_is_while_it_may() -> None:
    one = table(serving=9)
    one.set(7, one.parse_list("8-11"))
    assert shown(one, 7)["effective_affinity_list"] == "9"


def test_an_interrupt_goes_to_the_cpu_with_the_fewest_vectors() -> None:
    one = table()
    one.interrupts[8] = Interrupt(frozenset([8]), frozenset([8]), False)
    one.set(7, one.parse_list("8-9"))
    assert shown(one, 7)["effective_affinity_list"] == "9"
