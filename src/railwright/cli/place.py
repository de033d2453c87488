"""`railwright place` and `railwright advise`: which GPU each rank gets, and which split of a model fits the fleet."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from rich.console import Console

from railwright.fleet import advisor
from railwright.fleet.placement import RATES, Comparison, Place, Split, place
from railwright.node.model import InputError, Plan

from . import view
from .files import dump_json, read_json, write_text


def add_verbs(verbs: Any) -> None:
    """Register `place` and `advise`."""
    parser = verbs.add_parser(
        "place",
        help="the rank order that keeps tensor groups on NVLink and gradient rings on equal rails",
        description="Order the GPUs of a job, from DIR/<node>/plan.json, and tell the bytes that cross each level"
        " before and after.",
        epilog="Exit status: 0 told, 2 bad input or usage, 3 a node's plan is refused.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument(
        "--nodes", help="names with commas, in the launcher's order (default: all of DIR, in order)"
    )
    for axis in ("tensor", "expert", "data", "pipeline"):
        parser.add_argument(f"--{axis}", type=int, default=1, metavar="N", help=f"{axis} parallel size")
        parser.add_argument(
            f"--{axis}-bytes", type=float, default=1e9, metavar="B", help="of one GPU and step (default: 1e9)"
        )
    _rates(parser)
    parser.add_argument(
        "--rankfile", type=Path, metavar="FILE", help="write Open MPI's rank file in the order found"
    )
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=run_place)

    parser = verbs.add_parser(
        "advise",
        help="which tensor, pipeline, data and expert sizes fit a model into the fleet, the fastest first",
        description="Order the feasible splits of a model by memory and traffic; every assumption is printed.",
        epilog="Exit status: 0 told, 2 bad input or usage, 3 the model fits in no way.",
    )
    for name, words in (
        ("parameters", "of the model, all of them"),
        ("layers", ""),
        ("hidden", "size of the model"),
        ("sequence", "tokens of one sequence"),
        ("batch", "sequences of one step, over all GPUs"),
        ("gpus", "GPUs of the job"),
    ):
        kind = float if name == "parameters" else int
        parser.add_argument(f"--{name}", type=kind, required=True, metavar="N", help=words)
    parser.add_argument("--micro", type=int, default=1, help="sequences of one micro-batch (default: 1)")
    parser.add_argument("--experts", type=int, default=1)
    parser.add_argument("--chosen", type=int, default=1, help="experts that a token meets")
    parser.add_argument("--active", type=float, help="parameters that a token meets")
    parser.add_argument("--domain", type=int, default=8, help="GPUs that share NVLink (default: 8)")
    parser.add_argument("--memory", type=float, default=80, help="GiB of each GPU (default: 80)")
    parser.add_argument(
        "--peak", type=float, default=989e12, help="dense bf16 operations a second (default: H100 SXM)"
    )
    parser.add_argument("--share", type=float, default=0.4, help="of the peak that is reached (default: 0.4)")
    _rates(parser)
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=run_advise)


def _rates(parser: argparse.ArgumentParser) -> None:
    for level, rate in RATES.items():
        parser.add_argument(
            f"--{level}",
            dest=level,
            type=float,
            default=rate,
            metavar="GB/s",
            help=f"of one GPU (default: {rate:g})",
        )


def _chosen_rates(arguments: argparse.Namespace) -> dict[str, float]:
    rates = {level: float(getattr(arguments, level)) for level in RATES}
    for level, rate in rates.items():
        if not 0 < rate < math.inf:
            raise InputError(f"--{level}", f"found {rate:g}", "expected a rate above 0")
    return rates


def run_place(arguments: argparse.Namespace, out: Console) -> int:
    """Order and print."""
    places, refused = _places(arguments)
    if refused:
        view.say(out, f"refused, so nothing runs there: {', '.join(refused)}; leave them out with --nodes")
        return 3
    axes = ("tensor", "expert", "data", "pipeline")
    split = Split(
        *(getattr(arguments, axis) for axis in axes), *(getattr(arguments, f"{axis}_bytes") for axis in axes)
    )
    compared = place(places, split, _chosen_rates(arguments))
    if arguments.rankfile is not None:
        write_text(arguments.rankfile, _rankfile(compared, arguments.directory))
    if arguments.json:
        out.file.write(dump_json(_json(compared)))
        return 0
    for sentence in compared.sentences:
        view.say(out, sentence)
    view.say(
        out,
        f"Rates taken, GB/s of one GPU: {', '.join(f'{k} {v:g}' for k, v in _chosen_rates(arguments).items())}.",
    )
    for rank, gpu in enumerate(compared.after.order):
        rail = "no rail" if gpu.rail is None else f"rail {gpu.rail}"
        out.print(f"  rank {rank}: {gpu.node} GPU {gpu.index} ({rail})", soft_wrap=True)
    return 0


def _places(arguments: argparse.Namespace) -> tuple[list[Place], list[str]]:
    directory: Path = arguments.directory
    if not directory.is_dir():
        raise InputError(str(directory), "is no directory", "expected the output directory of a run")
    names = (
        _named(arguments.nodes)
        if arguments.nodes
        else sorted(folder.name for folder in directory.iterdir() if (folder / "plan.json").is_file())
    )
    if not names:
        raise InputError(str(directory), "holds no <node>/plan.json", "run playbooks/plan.yml first")
    leaves = _leaves(directory / "fleet.json")
    places: list[Place] = []
    refused = []
    for name in names:
        path = directory / name / "plan.json"
        plan = Plan.read(read_json(path), str(path))
        if plan.status == "refused":
            refused.append(name)
        unit = ",".join(sorted(leaves.get(name, ())))
        places += [Place(name, name, rank.rank, rank.rail, unit) for rank in plan.ranks]
    return places, refused


def _named(words: str) -> list[str]:
    names = words.split(",")
    for name in names:
        if not name or "/" in name or name in (".", ".."):
            raise InputError("--nodes", f"found {name!r}", "expected names of nodes with commas between")
        if names.count(name) > 1:
            raise InputError("--nodes", f"{name} stands {names.count(name)} times", "name each node once")
    return names


def _leaves(path: Path) -> dict[str, set[str]]:
    """The leaves of each node's rails, as the fleet's plan tells them; {} without one."""
    if not path.exists():
        return {}
    found: dict[str, set[str]] = {}
    try:
        for name, node in read_json(path)["nodes"].items():
            told = {end["leaf"] for end in node["rails"].values()}
            found[name] = {leaf for leaf in told if isinstance(leaf, str)}
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(
            str(path), "is not a fleet's plan", "write it again: railwright fleet plan DIR --write"
        ) from error
    return found


def _rankfile(compared: Comparison, directory: Path) -> str:
    cores: dict[tuple[str, int], str] = {}
    for name in dict.fromkeys(gpu.node for gpu in compared.after.order):
        path = directory / name / "plan.json"
        for rank in Plan.read(read_json(path), str(path)).ranks:
            if rank.cores is None:
                raise InputError(
                    f"{name}: GPU {rank.rank}", "its cores are not known", "a rank file needs them"
                )
            cores[name, rank.rank] = rank.cores
    return "".join(
        f"rank {rank}={gpu.node} slot={cores[gpu.node, gpu.index]}\n"
        for rank, gpu in enumerate(compared.after.order)
    )


def _json(compared: Comparison) -> Any:
    return {
        "before": {"crossing": compared.before.crossing, "seconds": compared.before.seconds},
        "after": {
            "crossing": compared.after.crossing,
            "seconds": compared.after.seconds,
            "ranks": [{"node": gpu.node, "gpu": gpu.index, "rail": gpu.rail} for gpu in compared.after.order],
        },
        "sentences": list(compared.sentences),
    }


def run_advise(arguments: argparse.Namespace, out: Console) -> int:
    """Order and print. 0 told, 3 no way."""
    model = advisor.Model(
        arguments.parameters,
        arguments.layers,
        arguments.hidden,
        arguments.sequence,
        arguments.batch,
        arguments.micro,
        arguments.experts,
        arguments.chosen,
        arguments.active,
    )
    fleet = advisor.Fleet(
        arguments.gpus,
        arguments.domain,
        arguments.memory * 2**30,
        arguments.peak,
        arguments.share,
        _chosen_rates(arguments),
    )
    advice = advisor.advise(model, fleet)
    if arguments.json:
        rows = [{**vars(one), "step": one.step} for one in advice]
        out.file.write(dump_json({"advice": rows, "assumptions": list(advisor.ASSUMPTIONS)}))
        return 0 if advice else 3
    out.print(
        "  tensor pipeline data expert  GiB/GPU  step s  arithmetic  bubble  tensor  pipeline   data  expert"
    )
    for one in advice[:20]:
        out.print(
            f"  {one.tensor:6} {one.pipeline:8} {one.data:4} {one.expert:6}  {advisor.gib(one.memory):7.1f}"
            f" {one.step:7.2f}  {one.arithmetic:10.2f} {one.bubble:7.2f} {one.tensor_seconds:7.2f}"
            f" {one.pipeline_seconds:9.2f}"
            f" {one.data_seconds:6.2f} {one.expert_seconds:7.2f}",
            soft_wrap=True,
        )
    if not advice:
        view.say(
            out,
            "No split fits into the memory: more GPUs, a smaller micro-batch, or recompute all activations.",
        )
    view.say(out, "Assumptions; nothing here was measured:")
    for text in advisor.ASSUMPTIONS:
        view.say(out, text, indent=4)
    return 0 if advice else 3
