"""Policy of runtimes for deep learning: environments of wheels, servers of models, images."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Optional

from .codec import InputError
from .values import USER, like, one_of, within
from .wheel_lock import read_lock

PROFILES = ("training", "inference")
ENGINES = ("vllm", "sglang")
IMAGE_TOOLS = ("podman", "docker", "ctr")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,40}", re.ASCII)
# No user, no question mark: what is secret belongs into a netrc file on the node.
_URL = re.compile(
    r"(?:https?://(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~%+-]*)*|file:///[!-~]+)",
    re.ASCII,
)
_FOLDER = re.compile(r"/(?!/|.*(?:/\.{1,2}(?:/|$)|//))[A-Za-z0-9._/@+-]*[A-Za-z0-9._@+-]", re.ASCII)
# What a reference must have: a name with its registry, and a digest (OCI distribution specification 1.1, "digest").
_IMAGE = re.compile(
    r"[a-z0-9.-]+(?::[0-9]{1,5})?(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)+(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?@sha256:[0-9a-f]{64}",
    re.ASCII,
)
# One word of a command line in a unit: systemd reads % $ and quotes in its own way (systemd.service(5)).
_WORD = re.compile(r"[A-Za-z0-9_./:=,@+-]{1,200}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9:][A-Za-z0-9.:-]{0,200}", re.ASCII)
# The plan gives these: a second one would win over it, and the server would reach for GPUs that are not its own.
_PLANNED = (
    "--host",
    "--port",
    "--model",
    "--model-path",
    "--tensor-parallel-size",
    "-tp",
    "--tp",
    "--tp-size",
)
# Words of the engines that are followed by a secret, which everybody reads in a unit and in the list of processes.
_SECRET = ("--api-key", "--admin-api-key", "--hf-token", "--ssl-keyfile-password")
# A word of the engines' own that begins like one of those above.
_WHOLE = ("--ssl-keyfile",)
_MOST_SERVERS_PORT = 65535
_LONGEST_SPACE = 1 << 24


@dataclass(frozen=True)
class EnvironmentPolicy:
    """One versioned environment under /opt/railwright.

    lock: the text of its lock, with hashes. profile: "training" or "inference": what has to be in it. python: the
    node's interpreter that it is made with. indexes: the first one is asked, then the others; or wheelhouse: a folder
    of the node, and no network. netrc: a file of the node with names and passwords for these indexes. keep: how many
    older versions stay; None: all. space: MiB that must be free before anything is fetched from an index.
    """

    lock: str
    profile: str = "training"
    python: str = "/usr/bin/python3"
    indexes: tuple[str, ...] = ()
    wheelhouse: Optional[str] = None
    netrc: Optional[str] = None
    keep: Optional[int] = None
    space: Optional[int] = None


@dataclass(frozen=True)
class ServerPolicy:
    """Servers of one model on this node, each on GPUs of its own.

    environment: whose programs are run. engine: "vllm" or "sglang". model: its folder or name. tensor_parallel: GPUs of
    one replica. replicas: None: as many as the GPUs allow. port: of the first replica; the next ones follow. user: who
    runs it; None: a user that systemd makes for it. arguments: more words for the engine. enabled: whether they start
    at the next boot.
    """

    environment: str
    engine: str
    model: str
    tensor_parallel: int = 1
    replicas: Optional[int] = None
    host: str = "127.0.0.1"
    port: int = 8000
    user: Optional[str] = None
    arguments: tuple[str, ...] = ()
    enabled: bool = False


@dataclass(frozen=True)
class RuntimePolicy:
    """What is there for jobs beside driver and libraries. Nothing by itself.

    images: references with their digest, pulled before a job asks for them; image_tool: by whom.
    """

    environments: dict[str, EnvironmentPolicy] = field(default_factory=dict)
    servers: dict[str, ServerPolicy] = field(default_factory=dict)
    images: tuple[str, ...] = ()
    image_tool: str = "podman"


def must_be_sound(runtime: RuntimePolicy, where: str) -> None:
    """Raises InputError with the place of what no runtime can be made of."""
    top = f"{where}.dl_runtime"
    if not (runtime.environments or runtime.servers or runtime.images):
        raise InputError(top, "names nothing", "name environments, servers or images, or leave the group out")
    for name, environment in runtime.environments.items():
        like(name, _NAME, f"{top}.environments", "lower-case letters, digits, _ and -")
        _environment(environment, f"{top}.environments.{name}")
    for name, server in runtime.servers.items():
        like(name, _NAME, f"{top}.servers", "lower-case letters, digits, _ and -")
        _server(server, runtime, f"{top}.servers.{name}")
    one_of(runtime.image_tool, IMAGE_TOOLS, f"{top}.image_tool")
    for number, image in enumerate(runtime.images):
        image_reference(image, f"{top}.images[{number}]")
        if image in runtime.images[:number]:
            raise InputError(f"{top}.images[{number}]", "is there twice", "leave one of the two")


def image_reference(text: str, where: str) -> str:
    """`text`, when it is a reference with a digest. Raises InputError."""
    if _IMAGE.fullmatch(text) is None:
        why = "has no digest: a tag may be another image tomorrow" if "@" not in text else "is no reference"
        raise InputError(
            where,
            f"{text.rpartition('@')[2][:120]!r} {why}",
            "expected registry.example/name@sha256:<64 hex digits>",
        )
    return text


def index_address(text: str, where: str) -> str:
    """`text`, when it is the address of an index without a secret in it. Raises InputError, without the address."""
    if "@" in text or "?" in text:
        raise InputError(
            where,
            "has a user, a password or a query in it, which every reader of the policy would see",
            "leave it out of the address, and name a netrc file of the node",
        )
    if not _URL.fullmatch(text):
        # A secret stands in addresses that are written wrong, too.
        raise InputError(where, "is no address", "expected one like https://mirror.example/simple")
    return text


def plain_path(text: str, where: str) -> str:
    """`text`, when it is an absolute path in its shortest form. Raises InputError."""
    like(text, _FOLDER, where, "an absolute path without blanks")
    return text


def _environment(environment: EnvironmentPolicy, where: str) -> None:
    read_lock(environment.lock, f"{where}.lock")
    one_of(environment.profile, PROFILES, f"{where}.profile")
    plain_path(environment.python, f"{where}.python")
    for number, address in enumerate(environment.indexes):
        index_address(address, f"{where}.indexes[{number}]")
    if environment.wheelhouse is not None:
        plain_path(environment.wheelhouse, f"{where}.wheelhouse")
    if environment.netrc is not None:
        plain_path(environment.netrc, f"{where}.netrc")
        if any(address.startswith("http://") for address in environment.indexes):
            raise InputError(
                f"{where}.netrc", "would go over plain http with its password", "give https:// indexes"
            )
    if bool(environment.indexes) == (environment.wheelhouse is not None):
        raise InputError(
            where, "says not where its wheels come from", "give indexes, or a wheelhouse, and not both"
        )
    within(environment.keep, 0, 100, f"{where}.keep")
    within(environment.space, 0, _LONGEST_SPACE, f"{where}.space")


def _server(server: ServerPolicy, runtime: RuntimePolicy, where: str) -> None:
    environment = runtime.environments.get(server.environment)
    if environment is None or environment.profile != "inference":
        known = [name for name, one in runtime.environments.items() if one.profile == "inference"]
        raise InputError(
            f"{where}.environment",
            f"{server.environment!r} is no environment of the profile inference",
            f"one of {', '.join(known) or 'those that dl_runtime.environments has to name'}",
        )
    one_of(server.engine, ENGINES, f"{where}.engine")
    if server.tensor_parallel < 1 or (server.replicas is not None and server.replicas < 1):
        raise InputError(where, "found less than one GPU or replica", "count from 1")
    within(server.port, 1, _MOST_SERVERS_PORT, f"{where}.port")
    like(server.user, USER, f"{where}.user", "the name of a user")
    if server.model.startswith("-"):
        # Never the word itself, which may end in a secret.
        raise InputError(f"{where}.model", "is a word for the engine", "name a folder or a model")
    like(server.model, _WORD, f"{where}.model", "one word without blanks and quotes")
    like(server.host, _HOST, f"{where}.host", "an address or a name to listen on")
    for number, word in enumerate(server.arguments):
        place = f"{where}.arguments[{number}]"
        # Never the word itself: what follows an = may be the secret.
        name = word.partition("=")[0]
        if _means(name, _SECRET):
            raise InputError(
                place,
                f"{name} puts a secret into the plan and the unit",
                "set it in a drop-in of your own, with an EnvironmentFile of mode 0600 (VLLM_API_KEY, HF_TOKEN)",
            )
        if _means(name, _PLANNED):
            raise InputError(place, f"{name} is the plan's own", "say it by the server's own keys")
        if not _WORD.fullmatch(word):
            raise InputError(place, "is no plain word", "expected one word without blanks and quotes")


def _means(name: str, words: tuple[str, ...]) -> bool:
    """Whether the engines take `name` for one of these: argparse takes the beginning of a long word for the word
    (Python library reference, "Argument abbreviations"), and vLLM takes _ for - (FlexibleArgumentParser)."""
    name = name.replace("_", "-")
    begun = name.startswith("--") and len(name) > 2 and name not in _WHOLE
    return name in words or (begun and any(word.startswith(name) for word in words))
