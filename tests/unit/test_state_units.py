"""The kind "systemd_unit": enabled, started, and restarted when it is older than its configuration."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from railwright.node.state import apply, command, revert, unit_item
from railwright.node.state.item import Node, World
from railwright.node.state.outcome import Refused
from tests.unit.state_support import LONG_AGO, Systemd, file_entry, fingerprint, item, items, make_node, plant

UNIT = "railwright-tune.service"
UNIT_PATH = f"/etc/systemd/system/{UNIT}"
TEXT = "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"
POLICY = "/etc/railwright/policy.json"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return make_node(tmp_path / "node")


@pytest.fixture
def systemd(node: Path) -> Systemd:
    return Systemd(node)


def unit(**more: Any) -> dict[str, Any]:
    return {"kind": "systemd_unit", "name": UNIT, **more}


def put(node: Path, runner: Systemd | None, *entries: dict[str, Any], **more: Any) -> Any:
    return apply({"part": list(entries)}, root=str(node), runner=runner, **more)


FULL = unit(enabled=True, state="started", restart_if_older_than=[POLICY, UNIT_PATH])


def whole(policy: str = "1\n", text: str = TEXT) -> list[dict[str, Any]]:
    return [FULL, file_entry(UNIT_PATH, text), file_entry(POLICY, policy)]


def test_a_unit_whose_file_this_run_writes_is_foretold_set_and_then_left_alone(
    node: Path, systemd: Systemd
) -> None:
    foretold = put(node, systemd, *whole(), check=True)
    assert (foretold.failures, systemd.calls) == ((), [])
    done = put(node, systemd, *whole())
    assert foretold.to_json() == done.to_json()
    assert items(done, "part")[f"systemd_unit:{UNIT}"]["action"] == "enable+start"
    assert systemd.calls == ["daemon-reload", f"enable {UNIT}", f"reset-failed {UNIT}", f"start {UNIT}"]
    systemd.calls.clear()
    assert not put(node, systemd, *whole()).changed
    assert systemd.calls == []


def test_a_revert_stops_and_disables_before_the_file_goes_and_reloads_after(
    node: Path, systemd: Systemd
) -> None:
    before = fingerprint(node)
    put(node, systemd, *whole())
    systemd.calls.clear()
    seen: list[bool] = []
    stop = systemd._stop

    def stop_and_look(name: str) -> tuple[int, str, str]:
        seen.append((node / UNIT_PATH[1:]).exists())
        return stop(name)

    systemd._stop = stop_and_look  # type: ignore[method-assign]
    revert(root=str(node), runner=systemd)
    assert seen == [True]
    assert systemd.calls == [f"disable {UNIT}", f"stop {UNIT}", "daemon-reload"]
    assert fingerprint(node) == before


def test_a_unit_older_than_its_configuration_is_restarted_once(node: Path, systemd: Systemd) -> None:
    put(node, systemd, *whole())
    systemd.calls.clear()
    outcome = put(node, systemd, *whole(policy="2\n"))
    assert systemd.calls == [f"reset-failed {UNIT}", f"restart {UNIT}"]
    entry = items(outcome, "part")[f"systemd_unit:{UNIT}"]
    assert (entry["action"], entry["before"], entry["after"]) == (
        "restart",
        {"configuration": "older"},
        {"configuration": "current"},
    )
    assert entry["note"] == f"older than {POLICY}"
    assert not put(node, systemd, *whole(policy="2\n")).changed


def test_a_configuration_that_somebody_else_wrote_later_is_seen_by_its_time(
    node: Path, systemd: Systemd
) -> None:
    plant(node, UNIT_PATH, TEXT)
    plant(node, POLICY, "1\n")
    systemd.run_since(UNIT, LONG_AGO + 10**9)
    entry = unit(restart_if_older_than=[POLICY, "/etc/not/there"])
    assert not put(node, systemd, entry).changed
    os.utime(node / POLICY[1:], ns=(LONG_AGO, LONG_AGO + 2 * 10**9))
    foretold = put(node, systemd, entry, check=True)
    assert item(foretold)["action"] == "restart"
    assert put(node, systemd, entry).to_json() == foretold.to_json()
    assert systemd.calls == [f"reset-failed {UNIT}", f"restart {UNIT}"]


def test_a_configuration_behind_a_link_is_seen_when_this_run_writes_it(node: Path, systemd: Systemd) -> None:
    plant(node, UNIT_PATH, TEXT)
    systemd.run_since(UNIT, time.time_ns())
    plant(node, "/etc/railwright/today.json", "1\n")
    (node / POLICY[1:]).symlink_to("today.json")
    entries = [unit(restart_if_older_than=[POLICY]), file_entry("/etc/railwright/today.json", "2\n")]
    assert items(put(node, systemd, *entries), "part")[f"systemd_unit:{UNIT}"]["action"] == "restart"
    assert not put(node, systemd, *entries).changed


def test_a_configuration_dated_in_the_future_decides_nothing_and_is_said(
    node: Path, systemd: Systemd
) -> None:
    plant(node, UNIT_PATH, TEXT)
    plant(node, POLICY, "1\n")
    later = time.time_ns() + 3600 * 10**9
    os.utime(node / POLICY[1:], ns=(later, later))
    systemd.run_since(UNIT, LONG_AGO)
    outcome = put(node, systemd, unit(restart_if_older_than=[POLICY]))
    assert not outcome.changed
    assert (
        item(outcome)["note"] == f"{POLICY} is dated in the future: whether a restart is owed cannot be told"
    )


def test_an_unknown_start_decides_nothing(node: Path, systemd: Systemd) -> None:
    plant(node, UNIT_PATH, TEXT)
    plant(node, POLICY, "1\n")
    systemd.run_since(UNIT, LONG_AGO)
    for stamp in ("", "n/a", "Sun 2001-99-09 01:46:40.000000 UTC"):
        systemd.properties[UNIT] = {"ActiveEnterTimestamp": stamp}
        assert not put(node, systemd, unit(restart_if_older_than=[POLICY])).changed


def test_a_restart_that_an_earlier_run_did_not_come_to_is_still_owed(node: Path, systemd: Systemd) -> None:
    put(node, systemd, *whole())
    systemd.fails["restart"] = "Job for railwright-tune.service failed."
    outcome = put(node, systemd, *whole(policy="2\n"))
    (failure,) = outcome.failures
    assert failure.why == f"systemctl restart {UNIT}: Job for railwright-tune.service failed."
    assert failure.remedy == f"see journalctl -u {UNIT}"
    # Were it only for the time of the file, a clock that was set forward would hide it.
    os.utime(node / POLICY[1:], ns=(LONG_AGO, LONG_AGO))
    systemd.fails.clear()
    systemd.calls.clear()
    again = put(node, systemd, *whole(policy="2\n"))
    assert items(again, "part")[f"systemd_unit:{UNIT}"]["note"] == "older than what an earlier run wrote"
    assert systemd.calls == [f"reset-failed {UNIT}", f"restart {UNIT}"]
    assert not put(node, systemd, *whole(policy="2\n")).changed


def test_a_unit_that_was_there_before_runs_with_its_own_configuration_after_the_revert(
    node: Path, systemd: Systemd
) -> None:
    plant(node, UNIT_PATH, TEXT)
    plant(node, POLICY, "theirs\n")
    systemd.enabled[UNIT] = "enabled"
    systemd.run_since(UNIT, LONG_AGO + 10**9)
    before = fingerprint(node)
    entries = [
        unit(enabled=True, state="started", restart_if_older_than=[POLICY]),
        file_entry(POLICY, "ours\n"),
    ]
    put(node, systemd, *entries)
    assert systemd.calls == [f"reset-failed {UNIT}", f"restart {UNIT}"]
    systemd.calls.clear()
    outcome = revert(root=str(node), runner=systemd)
    assert systemd.calls == [f"reset-failed {UNIT}", f"restart {UNIT}"]
    assert items(outcome, "part")[f"systemd_unit:{UNIT}"]["after"] == {"configuration": "current"}
    assert fingerprint(node) == before
    assert systemd.enabled[UNIT] == "enabled"


def test_what_we_stopped_comes_up_again_with_its_own_file(node: Path, systemd: Systemd) -> None:
    plant(node, UNIT_PATH, TEXT)
    systemd.enabled[UNIT] = "enabled"
    systemd.run_since(UNIT, LONG_AGO)
    put(node, systemd, unit(enabled=False, state="stopped"), file_entry(UNIT_PATH, TEXT + "#\n"))
    assert (UNIT in systemd.enabled, UNIT in systemd.since) == (False, False)
    systemd.calls.clear()
    revert(root=str(node), runner=systemd)
    assert systemd.calls == ["daemon-reload", f"enable {UNIT}", f"reset-failed {UNIT}", f"start {UNIT}"]
    assert (node / UNIT_PATH[1:]).read_text() == TEXT


def test_a_unit_that_systemd_holds_in_an_old_form_is_read_again(node: Path, systemd: Systemd) -> None:
    plant(node, UNIT_PATH, TEXT)
    systemd.run_since(UNIT, LONG_AGO)
    (node / UNIT_PATH[1:]).write_text(TEXT + "# theirs\n")
    outcome = put(node, systemd, unit(state="started"))
    assert (item(outcome)["action"], systemd.calls) == ("reload", ["daemon-reload"])
    assert not put(node, systemd, unit(state="started")).changed
    assert not (node / "var/lib/railwright").exists()  # nothing of it is to be put back


def test_a_unit_file_that_systemd_has_not_read_yet_is_read(node: Path, systemd: Systemd) -> None:
    plant(node, UNIT_PATH, TEXT)
    systemd.properties[UNIT] = {"LoadState": "not-found"}
    reload = systemd._reload

    def reload_and_know(name: str) -> tuple[int, str, str]:
        systemd.properties.clear()
        return reload(name)

    systemd._reload = reload_and_know  # type: ignore[method-assign]
    outcome = put(node, systemd, unit(enabled=True, state="started"))
    assert outcome.failures == ()
    assert item(outcome)["action"] == "reload+enable+start"


@pytest.mark.parametrize(
    "path", ["/etc/systemd/system/docker.service.d/60-x.conf", "/etc/systemd/system.conf.d/60.conf"]
)
def test_a_file_of_systemds_alone_is_read_again_too(node: Path, systemd: Systemd, path: str) -> None:
    put(node, systemd, file_entry(path, "[Manager]\n"))
    assert systemd.calls == ["daemon-reload"]
    put(node, systemd, file_entry(path, "[Manager]\n"))
    assert systemd.calls == ["daemon-reload"]


def test_a_reload_that_failed_is_made_up_for_by_the_next_run(node: Path, systemd: Systemd) -> None:
    entry = file_entry("/etc/systemd/system/docker.service.d/60-x.conf", "[Service]\n")
    systemd.fails["daemon-reload"] = "Connection timed out"
    (failure,) = put(node, systemd, entry).failures
    assert (failure.where, failure.why) == ("systemd", "systemctl daemon-reload: Connection timed out")
    systemd.fails.clear()
    assert put(node, systemd, entry).failures == ()
    assert systemd.calls == ["daemon-reload", "daemon-reload"]
    put(node, systemd, entry)
    assert systemd.calls == ["daemon-reload", "daemon-reload"]


def test_a_reload_that_a_killed_run_owed_is_made_up_for_by_the_next_one(
    node: Path, systemd: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = file_entry("/etc/systemd/system/docker.service.d/60-x.conf", "[Service]\n")

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(unit_item, "reload", killed)
        with pytest.raises(KeyboardInterrupt):
            put(node, systemd, entry)
    assert ((node / entry["path"][1:]).exists(), systemd.calls) == (True, [])
    assert not put(node, systemd, entry).changed
    assert systemd.calls == ["daemon-reload"]


def test_units_start_in_the_order_of_their_slice_and_stop_in_the_other(node: Path, systemd: Systemd) -> None:
    for name in ("a.service", "b.service"):
        plant(node, f"/etc/systemd/system/{name}", TEXT)
    put(node, systemd, *({"kind": "systemd_unit", "name": f"{n}.service", "state": "started"} for n in "ab"))
    revert(root=str(node), runner=systemd)
    assert [call for call in systemd.calls if not call.startswith("reset-failed")] == [
        "start a.service",
        "start b.service",
        "stop b.service",
        "stop a.service",
    ]


def test_a_unit_is_left_alone_when_a_file_of_its_own_could_not_be_set(node: Path, systemd: Systemd) -> None:
    (node / POLICY[1:]).parent.mkdir()
    (node / POLICY[1:]).symlink_to("elsewhere")
    for check in (True, False):
        first, second = put(node, systemd, *whole(), check=check).failures
        assert first.why.startswith(f"{POLICY} is a symbolic link")
        assert second.why == f"{UNIT} was left alone, since {POLICY} could not be set"
    assert systemd.calls == ["daemon-reload"]  # for its file, which could be written


def test_a_unit_is_left_alone_when_its_file_fails_at_the_write(
    node: Path, systemd: Systemd, monkeypatch: Any
) -> None:
    from railwright.node.state import files

    real = files.replace

    def full(root: str, path: str, content: Any, seen: Any) -> None:
        if path.endswith("60-x.conf"):
            raise OSError(28, "No space left on device")
        real(root, path, content, seen)

    monkeypatch.setattr(files, "replace", full)
    plant(node, UNIT_PATH, TEXT)
    outcome = put(node, systemd, unit(state="started"), file_entry(f"{UNIT_PATH}.d/60-x.conf", "x\n"))
    assert [failure.why for failure in outcome.failures] == [
        f"file:{UNIT_PATH}.d/60-x.conf: No space left on device",
        f"{UNIT} was left alone, since {UNIT_PATH}.d/60-x.conf could not be set",
    ]
    assert UNIT not in systemd.since
    assert not (node / "var/lib/railwright").exists()


@pytest.mark.parametrize(
    ("properties", "entry", "why"),
    [
        ({"LoadState": "not-found"}, {"enabled": True}, f"the node has no unit {UNIT}"),
        ({"LoadState": "not-found"}, {"state": "started"}, f"the node has no unit {UNIT}"),
        ({"LoadState": "masked"}, {"state": "started"}, f"{UNIT} is masked"),
        ({"LoadState": "bad-setting"}, {"state": "started"}, f"systemd cannot load {UNIT}: bad-setting"),
        (
            {"RemainAfterExit": "no"},
            {"state": "started"},
            f"{UNIT} is a one-shot unit that does not stay active: whether it has run cannot be told",
        ),
    ],
)
def test_a_unit_that_cannot_be_is_refused_before_anything_is_done(
    node: Path, systemd: Systemd, properties: dict[str, str], entry: dict[str, Any], why: str
) -> None:
    if properties.get("LoadState") != "not-found":
        plant(node, UNIT_PATH, TEXT)
    systemd.properties[UNIT] = properties
    for check in (True, False):
        (failure,) = put(node, systemd, unit(**entry), check=check).failures
        assert failure.why == why
    assert systemd.calls == []


def test_a_unit_without_an_install_section_cannot_be_enabled(node: Path, systemd: Systemd) -> None:
    plant(node, UNIT_PATH, "[Service]\n")
    systemd.enabled[UNIT] = "static"
    (failure,) = put(node, systemd, unit(enabled=True)).failures
    assert failure.why == f"{UNIT} cannot be enabled: it has no [Install] section"
    systemd.enabled.clear()  # as systemd says it of one that it has not read
    (failure,) = put(node, systemd, unit(enabled=True)).failures
    assert failure.why == f"{UNIT} should be enabled and is disabled"


def test_a_unit_that_does_not_stay_up_is_a_failure(node: Path, systemd: Systemd) -> None:
    plant(node, UNIT_PATH, TEXT)
    systemd._start = lambda name: (0, "", "")  # type: ignore[method-assign]
    (failure,) = put(node, systemd, unit(state="started")).failures
    assert failure.why == f"{UNIT} was set and is inactive now"


@pytest.mark.parametrize(
    ("state", "sub", "up"),
    [
        ("active", "running", True),
        ("reloading", "reload", True),
        ("activating", "start", True),
        ("activating", "auto-restart", False),
        ("deactivating", "stop", False),
        ("failed", "failed", False),
    ],
)
def test_which_states_count_as_started(node: Path, systemd: Systemd, state: str, sub: str, up: bool) -> None:
    plant(node, UNIT_PATH, TEXT)
    systemd.properties[UNIT] = {"ActiveState": state, "SubState": sub}
    assert put(node, systemd, unit(state="started"), check=True).changed is not up


@pytest.mark.parametrize(
    ("word", "enabled", "changed"),
    [
        ("enabled", True, False),
        ("alias", True, False),
        ("enabled-runtime", True, True),
        ("indirect", True, True),
        ("static", False, False),
        ("masked", False, False),
        ("enabled-runtime", False, True),
        ("alias", False, True),
    ],
)
def test_which_words_count_as_enabled(
    node: Path, systemd: Systemd, word: str, enabled: bool, changed: bool
) -> None:
    plant(node, UNIT_PATH, TEXT)
    systemd.enabled[UNIT] = word
    assert put(node, systemd, unit(enabled=enabled), check=True).changed is changed


def test_a_unit_that_is_not_there_is_as_good_as_stopped_and_disabled(node: Path, systemd: Systemd) -> None:
    outcome = put(node, systemd, unit(enabled=False, state="stopped"))
    assert (outcome.changed, outcome.failures) == (False, ())


def test_a_unit_that_left_with_its_package_needs_nothing_put_back(node: Path, systemd: Systemd) -> None:
    plant(node, UNIT_PATH, TEXT)
    put(node, systemd, unit(enabled=True, state="started"))
    (node / UNIT_PATH[1:]).unlink()
    systemd._reload("")
    systemd.enabled.clear()
    systemd.since.clear()
    outcome = revert(root=str(node), runner=systemd)
    assert item(outcome)["note"] == (
        f"{UNIT} (enabled) is gone: nothing to put back; {UNIT} (active) is gone: nothing to put back"
    )
    assert not (node / "var/lib/railwright").exists()


def test_a_wish_that_left_the_entry_goes_back(node: Path, systemd: Systemd) -> None:
    plant(node, UNIT_PATH, TEXT)
    put(node, systemd, unit(enabled=True, state="started"))
    outcome = put(node, systemd, unit(state="started"))
    assert item(outcome)["action"] == "disable"
    assert (UNIT in systemd.enabled, UNIT in systemd.since) == (False, True)


def test_an_instance_finds_the_file_of_its_template(node: Path, systemd: Systemd) -> None:
    entry = {"kind": "systemd_unit", "name": "rail@eth0.100.service", "enabled": True}
    outcome = put(node, systemd, entry, file_entry("/etc/systemd/system/rail@.service", TEXT), check=True)
    assert outcome.failures == ()
    assert items(outcome, "part")["systemd_unit:rail@eth0.100.service"]["action"] == "enable"


def test_without_a_running_systemd_a_unit_is_enabled_and_starts_at_boot(node: Path) -> None:
    systemd = Systemd(node, booted=False)
    outcome = put(node, systemd, *whole())
    assert systemd.calls == [f"enable {UNIT}"]
    assert items(outcome, "part")[f"systemd_unit:{UNIT}"]["note"] == "no systemd runs here: it starts at boot"
    assert not put(node, systemd, *whole()).changed
    (failure,) = put(node, systemd, unit(state="started"), *whole()[1:]).failures
    assert failure.why == f"no systemd runs here, so {UNIT} cannot be started"
    (failure,) = put(node, systemd, {**FULL, "name": "other.service"}, *whole()[1:]).failures
    assert failure.why == "the node has no unit other.service"


def test_units_need_a_systemctl_and_other_items_do_not(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (failure,) = put(node, None, FULL).failures
    assert failure.why == "this root is no running node, so its units cannot be set"
    assert put(node, None, file_entry(UNIT_PATH, TEXT)).failures == ()
    monkeypatch.setenv("PATH", str(node))
    with pytest.raises(Refused, match="the node has no systemctl on its PATH"):
        unit_item.systemctl(["show"])


def test_the_nodes_systemctl_is_asked_in_plain_words_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = plant(
        tmp_path, "/systemctl", '#!/bin/sh\necho "$LC_ALL $SYSTEMD_COLORS $*"; echo no >&2; exit 3\n', 0o755
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert unit_item.systemctl(["show", "a b"]) == (3, "C 0 show a b\n", "no\n")
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(unit_item, "_LONGEST_SECONDS", 0.2)
    with pytest.raises(Refused, match=r"systemctl start x did not come back in 0\.2 s"):
        unit_item.systemctl(["start", "x"])


@pytest.mark.parametrize("tool", ["systemctl", "update-initramfs"])
def test_what_takes_too_long_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    child = tmp_path / "child"
    script = f"#!/bin/sh\nsleep 60 &\necho $! > {child}.new; mv {child}.new {child}\nwait\n"
    plant(tmp_path, f"/{tool}", script, 0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(unit_item, "_LONGEST_SECONDS", 0.3)
    monkeypatch.setitem(command._LONGER_SECONDS, tool, 0.3)
    if tool == "systemctl":
        with pytest.raises(Refused, match="did not come back"):
            unit_item.systemctl(["start", "x"])
    else:
        assert command.run([tool, "-u"]).code == command.STOPPED
    assert has_ended(int(child.read_text()))


def test_a_run_that_is_told_to_end_ends_what_it_started(tmp_path: Path) -> None:
    """In a session of its own a program does not hear what the run is told: a lost terminal, timeout(1)."""
    child = tmp_path / "child"
    tool = plant(
        tmp_path, "/tool", f"#!/bin/sh\necho $$ > {child}.new; mv {child}.new {child}\nexec sleep 60\n", 0o755
    )
    # As a run finds them by default: what ignores them (nohup, a job in the background) hands that on.
    code = (
        "import signal; from railwright.node.state import command;"
        "signal.signal(signal.SIGTERM, signal.SIG_DFL); signal.signal(signal.SIGHUP, signal.SIG_DFL);"
        f"signal.signal(signal.SIGINT, signal.default_int_handler); command.run([{str(tool)!r}])"
    )
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        child.unlink(missing_ok=True)
        with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as run:
            while not child.exists():
                assert run.poll() is None
                time.sleep(0.01)
            run.send_signal(number)
            assert run.wait() == -number
        assert has_ended(int(child.read_text()))


def has_ended(process: int) -> bool:
    """Within two seconds: one that nobody has asked after yet is a zombie, and has ended too."""
    for _ in range(200):
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


def test_a_systemctl_that_tells_nothing_is_a_failure(node: Path, systemd: Systemd) -> None:
    answers = {
        "show": (0, "Running in chroot, ignoring command 'show'\n", ""),
        "is-enabled": (0, "enabled\n", ""),
    }
    outcome = apply({"part": [FULL]}, root=str(node), runner=lambda words: answers[words[0]])
    assert [failure.why for failure in outcome.failures] == [f"systemctl show {UNIT} tells no LoadState"]
    outcome = apply({"part": [FULL]}, root=str(node), runner=lambda words: (4, "", ""))
    assert outcome.failures[0].why.endswith(": exit status 4")


def test_nothing_is_read_again_where_no_systemd_runs(node: Path) -> None:
    world = World(reload=True)
    unit_item.reload(Node(str(node), None), world)
    assert not world.reload
