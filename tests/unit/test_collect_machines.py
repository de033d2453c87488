"""A bundle of each recorded machine gives the plan that the machine itself gives."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from railwright.node.discover import discover
from railwright.node.model import Facts, InputError, Policy, to_json
from railwright.plan import plan as make_plan
from tests.machinery import build

from .collect_support import KEY, unpacked, with_pseudonyms, write_bundle

MACHINES = Path(__file__).parents[1] / "machines"
GOOD = sorted(path.parent.name for path in MACHINES.glob("*/machine.yml"))
REJECTS = sorted(path.parent.name for path in MACHINES.glob("rejects/*/machine.yml"))


def planned(facts: Facts) -> str:
    return json.dumps(to_json(make_plan(facts, Policy())), indent=1)


@pytest.mark.parametrize("name", GOOD)
def test_a_bundle_of_a_recorded_machine_replays_to_its_plan(name: str, tmp_path: Path) -> None:
    tree, path = tmp_path / "tree", tmp_path / "bundle.tar.gz"
    build(MACHINES / name, tree)
    live = discover(tree)
    replayed = write_bundle(tree, path)
    assert planned(replayed) == with_pseudonyms(planned(live), live, replayed)
    assert replayed.witnesses[0].source == str(path)
    # No identity of the machine as its page states it.
    identities = (
        {nic.mac for nic in live.nics} | {nic.guid for nic in live.nics} | {gpu.uuid for gpu in live.gpus}
    )
    shown = unpacked(path).lower().decode("latin-1")
    for identity in filter(None, {*identities, live.host.name, live.host.boot_id, str(tree)}):
        for form in {identity, re.sub("[:-]", "", identity)} if len(identity) >= 12 else {identity}:
            assert not re.search(rf"(?<![a-z0-9]){re.escape(form)}(?![a-z0-9-])", shown), form


@pytest.mark.parametrize("name", REJECTS)
def test_a_machine_that_is_refused_is_refused_from_its_bundle_for_the_same_reason(
    name: str, tmp_path: Path
) -> None:
    tree, path = tmp_path / "tree", tmp_path / "bundle.tar.gz"
    build(MACHINES / "rejects" / name, tree)
    try:
        live = discover(tree)
    except InputError as unreadable:
        with pytest.raises(InputError, match=re.escape(str(unreadable))):
            write_bundle(tree, path)
        return
    replayed = write_bundle(tree, path)
    assert planned(replayed) == with_pseudonyms(planned(live), live, replayed)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("machine") / "tree"
    build(MACHINES / "2s_8xh100_10xcx7", folder)
    return folder


def test_ports_of_one_card_are_still_ports_of_one_card(tree: Path, tmp_path: Path) -> None:
    live, replayed = discover(tree), write_bundle(tree, tmp_path / "bundle.tar.gz")

    def groups(facts: Facts) -> list[list[str]]:
        guids = list(dict.fromkeys(nic.sys_image_guid for nic in facts.nics))
        return [[nic.name for nic in facts.nics if nic.sys_image_guid == guid] for guid in guids]

    assert groups(replayed) == groups(live)
    assert ["mlx5_3", "mlx5_4"] in groups(replayed)


def test_addresses_of_one_subnet_are_still_of_one_subnet_and_gids_still_match(
    tree: Path, tmp_path: Path
) -> None:
    replayed = write_bundle(tree, tmp_path / "bundle.tar.gz")
    for nic in replayed.nics:
        for address in nic.addresses:
            octets = [int(part) for part in address.partition("/")[0].split(".")]
            assert octets[0] == 10
            mapped = "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}".format(*octets)
            assert mapped in {gid.gid for gid in nic.gids}


def test_one_key_gives_one_set_of_pseudonyms_and_another_key_another(tree: Path, tmp_path: Path) -> None:
    first, again, other = (
        write_bundle(tree, tmp_path / f"{number}.tar.gz", key)
        for number, key in enumerate((KEY, KEY, KEY[::-1]))
    )
    assert first.nics == again.nics
    assert {nic.mac for nic in first.nics}.isdisjoint({nic.mac for nic in other.nics})
