"""containerd's configuration: a drop-in where it is read and takes nobody's settings away, else what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from railwright.node.discover.containers import containerd_config, read_containers
from railwright.node.discover.tree import Tree
from railwright.node.model import ContainerdConfig, Facts
from railwright.node.model.software import Package
from railwright.node.state import apply
from railwright.plan import container_runtime
from railwright.plan import containerd as containerd_plan
from tests.unit.container_support import asked, codes, entry, facts, paths, planned, refusal
from tests.unit.container_texts import FORM_2, FORM_3, OF_DOCKER
from tests.unit.stack_support import H100, machine, software
from tests.unit.state_support import make_node


def of(text: str) -> Facts:
    return facts(containerd=containerd_config(text, "config.toml"))


def test_containerd_without_a_configuration_gets_one_that_imports_and_the_same_after_it() -> None:
    policy = asked(runtime="containerd", cgroup_driver="systemd")
    made = planned(facts(), policy)
    whole = entry(made, "file", containerd_plan.CONFIG)["content"]
    part = entry(made, "file", containerd_plan.DROPIN)["content"]
    assert planned(of(whole), policy) == made
    read = containerd_config(part, "60-railwright.toml")
    assert (read.version, read.enable_cdi, read.systemd_cgroup, read.cri) == (2, True, True, True)


def test_the_configuration_that_a_package_brings_is_not_written_over_before_it_is_there() -> None:
    # Debian's containerd has config.toml as a conffile, with CNI's bin_dir = "/usr/lib/cni" in it.
    version = "1.7.24~ds1-6"
    policy = asked(runtime="containerd", packages={"containerd": version})
    bare = replace(facts(), software=software(packages=()))
    assert not paths(planned(bare, policy)) & {containerd_plan.CONFIG, containerd_plan.DROPIN}
    assert "container_runtime.containerd_again" in codes(bare, policy)
    there = replace(bare, software=software(packages=(Package("containerd", version),)))
    assert {containerd_plan.CONFIG, containerd_plan.DROPIN} <= paths(planned(there, policy))
    assert "container_runtime.containerd_again" not in codes(there, policy)


def test_a_drop_in_of_somebody_else_and_ours_do_not_take_each_others_place(tmp_path: Path) -> None:
    policy = asked(runtime="containerd")
    root = make_node(tmp_path)
    slices = {"container_runtime": [row for row in planned(facts(), policy).entries if row["kind"] == "file"]}
    assert apply(slices, root=str(root)).failures == ()

    def node() -> Facts:
        return replace(machine(H100), containers=read_containers(Tree(root), {}))

    planned(node(), policy)
    # As nvidia-ctk 1.18 writes it, and one without such a section, which does no harm.
    folder = root / "etc/containerd/conf.d"
    (folder / "10-debug.toml").write_text("version = 2\n[debug]\n  level = 'info'\n")
    planned(node(), policy)
    (folder / "99-nvidia.toml").write_text(
        'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]\n  runtime_type = "x"\n'
    )
    found = refusal(node(), policy)
    assert found.code == "container_runtime.containerd_drop_ins"
    assert "/etc/containerd/conf.d/99-nvidia.toml" in found.why
    assert "10-debug" not in found.why


def test_a_section_of_somebody_else_is_not_taken_away_by_a_drop_in_before_containerd_2() -> None:
    found = refusal(of(FORM_2.replace("imports = []", 'imports = ["/etc/containerd/conf.d/*.toml"]')),
                    asked(runtime="containerd"))  # fmt: skip
    assert found.code == "container_runtime.containerd_section"
    assert "enable_cdi = true" in found.remedy


def test_form_3_has_cdi_by_itself_and_takes_a_drop_in_for_the_rest() -> None:
    assert container_runtime.slice_of(of(FORM_3), asked(runtime="containerd"))[0] is None
    made = planned(of(FORM_3), asked(runtime="containerd", cgroup_driver="systemd"))
    assert paths(made) == {containerd_plan.DROPIN}
    read = containerd_config(entry(made, "file")["content"], "60-railwright.toml")
    assert (read.version, read.systemd_cgroup) == (3, True)


def test_a_configuration_that_needs_nothing_is_left_alone() -> None:
    good = FORM_2.replace("enable_cdi = false", "enable_cdi = true")
    assert (
        container_runtime.slice_of(of(good), asked(runtime="containerd", cgroup_driver="systemd"))[0] is None
    )


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("version = 2\n", "containerd_imports"),
        (OF_DOCKER.replace("#root", "version = 2\n#root"), "containerd_cri"),
        (OF_DOCKER, "containerd_version"),
    ],
)
def test_a_foreign_configuration_that_takes_no_drop_in_is_refused_with_what_to_do(
    text: str, code: str
) -> None:
    found = refusal(of(text), asked(runtime="containerd"))
    assert found.code == f"container_runtime.{code}"
    if code == "containerd_imports":
        assert containerd_plan.IMPORT in found.remedy


def test_an_unreadable_configuration_is_refused() -> None:
    node = facts(containerd=ContainerdConfig(why="line 3: found '[['"))
    assert refusal(node, asked(runtime="containerd")).code == "container_runtime.containerd_config"
