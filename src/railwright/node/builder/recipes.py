"""How each product is made into packages, from a source that lies in the scratch folder."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from ..state.outcome import Refused
from . import packing, tools
from .model import Request
from .worker import Worker

# Counts in a cache's key: raised when a recipe makes other packages of the same inputs.
RECIPE = 1
_TESTS_VERSION = re.compile(r'NCCL_TESTS_VERSION\s+"([0-9]+(?:\.[0-9]+)+)"')
_TESTS_FOLDER = "usr/lib/nccl-tests"


def variables(request: Request, worker: Worker) -> list[str]:
    """What make is told. Those of a request come last, and none of them can be one of ours."""
    cuda = request.cuda
    ours = {
        "CUDA_HOME": cuda,
        "CUDA_LIB": tools.library_folder(cuda),
        "NVCC_GENCODE": request.gencode,
        "BUILDDIR": str(worker.folder / "build"),
    }
    return [f"{name}={value}" for name, value in {**ours, **request.make}.items()]


def make_nccl(request: Request, source: Path, worker: Worker, kind: str) -> dict[str, Path]:
    """Packages by file name, by the source's own targets. Raises Refused."""
    tools.must_pack(source, kind)
    told = [*variables(request, worker), f"PKG_REVISION={request.revision}"]
    flavour = "debian" if kind == tools.DEB else "redhat"
    (worker.folder / "build").mkdir()
    worker.give(worker.folder / "build")
    worker.must(["make", f"-j{worker.jobs}", "src.build", *told], where=source)
    worker.must(["make", f"pkg.{flavour}.build", *told], where=source)
    ending = "*.deb" if kind == tools.DEB else "*.rpm"
    found = {path.name: path for path in sorted((worker.folder / "build/pkg").rglob(ending))}
    found = {name: path for name, path in found.items() if "-static" not in name}
    if not found:
        raise Refused(
            f"make pkg.{flavour}.build came to a good end and made no package", f"read its log: {worker.log}"
        )
    return found


def make_tests(
    request: Request, source: Path, worker: Worker, kind: str, nccl: dict[str, Path]
) -> dict[str, Path]:
    """nccl-tests with MPI, against these packages of NCCL. Its source makes programs only; the package is ours."""
    home = _nccl_home(nccl, worker, kind)
    told = [
        *variables(request, worker), "MPI=1", f"MPI_HOME={request.mpi}", f"NCCL_HOME={home}",
        # The programs run where no toolkit is.
        "CUDARTLIB=cudart_static",
    ]  # fmt: skip
    worker.must(["make", f"-j{worker.jobs}", "src.build", *told], where=source)
    programs = sorted((worker.folder / "build").glob("*_perf"))
    if not programs:
        raise Refused("make src.build came to a good end and made no *_perf", f"read its log: {worker.log}")
    stage = worker.folder / "stage"
    place = stage / _TESTS_FOLDER
    place.mkdir(parents=True)
    must_be_plain(programs)
    for program in programs:
        program.rename(place / program.name)
        (place / program.name).chmod(0o755)
    version = f"{_tests_version(source)}-{request.revision}+cuda{request.toolkit}"
    library = packing.upstream(nccl, kind)
    worker.give(stage)
    return packing.pack("nccl-tests", version, stage, library, worker, kind)


def must_be_plain(paths: Iterable[Path]) -> None:
    """Raises Refused for a link: root reads what a source has made, and a link may lead to what is root's alone."""
    for path in paths:
        if path.is_symlink() or not path.is_file():
            raise Refused(f"{path.name} is no plain file", "see what its makefiles do; a package is a file")


def _tests_version(source: Path) -> str:
    for path in sorted((source / "src").glob("*.[ch]*")):
        match = _TESTS_VERSION.search(path.read_text("utf-8", "replace"))
        if match is not None:
            return match[1]
    raise Refused(f"no file of {source.name}/src defines NCCL_TESTS_VERSION", "take nccl-tests 2.13 or later")


def _nccl_home(nccl: dict[str, Path], worker: Worker, kind: str) -> Path:
    """include and lib of NCCL's packages, as nccl-tests wants them."""
    tree = packing.unpacked(nccl, worker, kind)
    home = worker.folder / "nccl-home"
    home.mkdir()
    libraries = sorted(tree.rglob("libnccl.so*"))
    headers = sorted(tree.rglob("nccl.h"))
    if not libraries or not headers:
        raise Refused(
            "NCCL's packages hold no libnccl.so and nccl.h", "build NCCL with its development package"
        )
    (home / "lib").symlink_to(libraries[0].parent)
    (home / "include").symlink_to(headers[0].parent)
    worker.give(home)
    return home
