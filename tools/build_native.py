"""Compiles `mqlake.native`: Cython makes C of each module, and a C compiler an extension beside its source.

    records.py + *.pxd ──cython──▶ build/native/records.c + prim.h ──gcc, clang or zig──▶ records.cpython-311-….so

hatchling runs it (Native) for wheels and editable installs, and asks for Cython then, and for ziglang where there is no
compiler. Where nothing can be compiled, it says so once and the wheel is plain Python. It also leaves the files of
mqlake-client (client_files.py) out of wheels.
`python tools/build_native.py` compiles in place what is older than its sources, and fails if that fails; `--sanitize`
into build/sanitize, with sanitizers.

`--wheels` builds wheels for others into dist, of each Python (`--python 3.14`) and processor (`--machine aarch64`): zig
compiles for any Linux with glibc 2.17, and of the other Python only the headers are needed. It runs `uv build` with

    MQLAKE_TARGET=cp314-aarch64:/usr/include/python3.14     of Native; the wheel has that tag
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import runpy
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CYTHON = "cython==3.3.1"
ZIG = "ziglang==0.17.1"
NATIVE = Path("src", "mqlake", "native")
SANITIZED = Path("build", "sanitize")
MARK = "# cython:"
"""How the first line of a module begins that is compiled."""
SUFFIX: str = sysconfig.get_config_var("EXT_SUFFIX")
FLAGS = ["-O3", "-DNDEBUG", "-fPIC", "-shared", "-s", "-fvisibility=hidden", "-Wall", "-Wno-unused-function"]
FLAGS += ["-fwrapv", "-fno-strict-aliasing"]  # as Python itself is compiled
GLIBC = (2, 17)
"""Of wheels for others: manylinux2014."""
TARGET = "MQLAKE_TARGET"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
FLAGS += ["-fno-builtin-memcpy"]
"""Of one of unknown length gcc makes `rep movsb`, which takes longer than the call."""


class CannotCompileError(Exception):
    """There is no compiler, no header of Python's, or they failed; the text says which."""


def machine_flags(command: list[str], machine: str) -> list[str]:
    """What all processors of a kind can do that are sold since 2009; what needs more is chosen at run time."""
    if machine not in ("x86_64", "AMD64"):
        return []
    return ["-mcpu=x86_64_v2"] if "ziglang" in command else ["-march=x86-64-v2"]


def compiler() -> list[str]:
    """The command that compiles C."""
    named = os.environ.get("CC")
    for command in [named] if named else ["gcc", "clang", "cc"]:
        if shutil.which(command.split()[0]):
            return command.split()
    if has_ziglang():
        return [sys.executable, "-m", "ziglang", "cc"]
    raise CannotCompileError(f"there is no C compiler; gcc, clang and {ZIG} from the package index will do")


def has_ziglang() -> bool:
    """True if this Python has the package that brings clang."""
    try:
        return importlib.util.find_spec("ziglang") is not None
    except ValueError:
        return False


def has_compiler() -> bool:
    """True if one is there already."""
    try:
        return "ziglang" not in compiler()
    except CannotCompileError:
        return False


def modules(root: Path) -> list[Path]:
    """The sources that are compiled."""
    written = [path for path in (root / NATIVE).glob("*.py") if path.read_text().startswith(MARK)]
    return sorted([*written, *(root / NATIVE).glob("*.pyx")])


def is_older(made: Path, root: Path, source: Path) -> bool:
    """True if a file that was made of a module is older than what it was made of."""
    parts = [source, Path(__file__), *(root / NATIVE).glob("*.pxd"), *(root / NATIVE).glob("*.h")]
    return made.stat().st_mtime < max(part.stat().st_mtime for part in parts)


def is_stale(root: Path, source: Path, target: Target) -> bool:
    """True if the compiled module is missing, or older than what it was made of."""
    made = target.extension(source)
    return not made.exists() or is_older(made, root, source)


def run(command: list[str], directory: Path) -> None:
    """Runs a step; CannotCompileError with what it said when it fails."""
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotCompileError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


class Target(NamedTuple):
    """What is compiled for: where extensions go and how their names end, Python's headers, the compiler, its flags.
    No dataclass: hatchling runs this file without entering it in sys.modules, where dataclasses look."""

    directory: Path
    suffix: str
    includes: list[Path]
    command: list[str]
    flags: list[str]

    def extension(self, source: Path) -> Path:
        """Where the compiled module is."""
        return self.directory / (source.stem + self.suffix)


def this_python(root: Path) -> Target:
    """For the Python that runs this, beside the sources. CannotCompileError."""
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").exists():
        raise CannotCompileError(
            f"{include} has no Python.h (Debian and Ubuntu: apt-get install python3-dev)"
        )
    command = compiler()
    flags = [*FLAGS, *machine_flags(command, platform.machine())]
    return Target(root / NATIVE, SUFFIX, [include], command, flags)


def for_others(root: Path, target: str) -> tuple[Target, str]:
    """For the Python and the processor that MQLAKE_TARGET names, and the wheel's tag. CannotCompileError."""
    name, _, include = target.partition(":")
    tag, _, machine = name.partition("-")
    headers, directory = Path(include), root / "build" / "wheels" / name
    if machine not in MACHINES or not tag.startswith("cp3") or not (headers / "Python.h").exists():
        raise CannotCompileError(
            f"{TARGET}={target} names no Python's headers and no processor of {MACHINES}"
        )
    if not has_ziglang():
        raise CannotCompileError(f"wheels for others are compiled by {ZIG}, which is not here")
    # Debian's pyconfig.h includes that of the processor, which is the same but for what extensions do not ask
    own = headers.parent / f"{platform.machine()}-linux-gnu" / headers.name / "pyconfig.h"
    if own.exists():
        copied = directory / "include" / f"{machine}-linux-gnu" / headers.name / "pyconfig.h"
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_bytes(own.read_bytes())
    glibc = ".".join(map(str, GLIBC))
    command = [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-gnu.{glibc}"]
    flags = [*FLAGS, *machine_flags(command, machine)]
    suffix = f".cpython-{tag.removeprefix('cp')}-{machine}-linux-gnu.so"
    platforms = f"manylinux_{'_'.join(map(str, GLIBC))}_{machine}.manylinux2014_{machine}"
    return Target(
        directory, suffix, [headers, directory / "include"], command, flags
    ), f"{tag}-{tag}-{platforms}"


def sanitized(root: Path) -> Target:
    """The same, in build/sanitize, with AddressSanitizer and UndefinedBehaviorSanitizer: every fault ends the process.
    CannotCompileError."""
    found = this_python(root)
    if "ziglang" in found.command:
        raise CannotCompileError("zig has no AddressSanitizer: gcc or clang is needed (apt-get install gcc)")
    flags = [flag for flag in found.flags if flag not in ("-O3", "-DNDEBUG", "-s")]
    flags += [
        "-O1",
        "-g",
        "-fno-omit-frame-pointer",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ]
    flags += ["-shared-libasan"] if is_clang(found.command) else []
    return found._replace(directory=root / SANITIZED, flags=flags)


def is_clang(command: list[str]) -> bool:
    """True of clang, whatever it is called."""
    said = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout
    return "clang" in said


def make_code(root: Path, source: Path) -> Path:
    """The C of a module, which is the same for every target."""
    code = root / "build" / "native" / f"{source.stem}.c"
    if not code.exists() or is_older(code, root, source):
        code.parent.mkdir(parents=True, exist_ok=True)
        new = code.with_suffix(f".{os.getpid()}.c")
        relative = str(source.relative_to(root / "src"))
        run([sys.executable, "-m", "cython", "-3", relative, "-o", str(new)], root / "src")
        new.replace(code)
    return code


def compile_module(root: Path, source: Path, target: Target) -> None:
    """Makes the extension of one module, as a whole: a process that imports it meanwhile has the old one."""
    code, made = make_code(root, source), target.extension(source)
    made.parent.mkdir(parents=True, exist_ok=True)
    new = made.with_suffix(".new")
    includes = [f"-I{include}" for include in (*target.includes, root / NATIVE)]
    run([*target.command, *target.flags, *includes, str(code), "-o", str(new)], root)
    new.replace(made)


def compile_all(root: Path, target: Target) -> list[Path]:
    """Makes the extensions that are older than their sources; all of them are returned."""
    sources = modules(root)
    stale = [source for source in sources if is_stale(root, source, target)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda source: compile_module(root, source, target), stale))
    return [target.extension(source) for source in sources]


def headers_of(version: str, uv: str) -> Path | None:
    """Of a Python that is on this machine, or that uv can fetch."""
    asked = [uv, "python", "find", version]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    if found.returncode:
        subprocess.run([uv, "python", "install", "--quiet", version], capture_output=True, check=False)
        found = subprocess.run(asked, capture_output=True, text=True, check=False)
    if found.returncode:
        return None
    code = "import json, sysconfig; print(json.dumps(sysconfig.get_path('include')))"
    said = subprocess.run([found.stdout.strip(), "-c", code], capture_output=True, text=True, check=True)
    include = Path(json.loads(said.stdout))
    return include if (include / "Python.h").exists() else None


def build_wheels(root: Path, given: argparse.Namespace) -> list[str]:
    """A wheel for each of the Pythons and processors in dist; what is missing, and why."""
    missing = []
    includes = dict(pair.split("=", 1) for pair in given.include)
    for version in given.python or PYTHONS:
        include = includes.get(version) or headers_of(version, given.uv)
        if include is None:
            missing.append(
                f"no wheel for Python {version}: its headers are not here (--include {version}=DIR)"
            )
            continue
        for machine in given.machine or MACHINES:
            target = f"cp{version.replace('.', '')}-{machine}:{include}"
            built = subprocess.run(
                [given.uv, "build", "--quiet", "--wheel", "--out-dir", str(given.out), str(root)],
                env={**os.environ, TARGET: target},
                check=False,
            )
            if built.returncode:
                missing.append(f"no wheel for {target}: the build has failed")
    return missing


class Native(BuildHookInterface):  # type: ignore[type-arg]
    def dependencies(self) -> list[str]:
        return [CYTHON] if has_compiler() and TARGET not in os.environ else [CYTHON, ZIG]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        if version == "standard":
            self.leave_the_client(root, build_data)
        if named := os.environ.get(TARGET):  # what cannot be made then is an error
            target, tag = for_others(root, named)
            made = compile_all(root, target)
            build_data["pure_python"], build_data["tag"] = False, tag
            build_data["force_include"].update({str(path): f"mqlake/native/{path.name}" for path in made})
            return
        try:
            made = compile_all(root, this_python(root))
        except CannotCompileError as error:
            self.app.display_warning(f"mqlake is installed without native code, many times slower: {error}")
            return
        build_data["pure_python"], build_data["infer_tag"] = False, True
        build_data["artifacts"] += [str(path.relative_to(root)) for path in made]

    def leave_the_client(self, root: Path, build_data: dict[str, Any]) -> None:
        """A wheel depends on mqlake-client, whose files it does not have. An editable installation has all of src."""
        names = runpy.run_path(str(root / "tools" / "client_files.py"))["files"](root)
        self.build_config.target_config["exclude"] += [f"/src/{name}" for name in names]
        build_data["dependencies"].append(f"mqlake-client=={self.metadata.version}")


def get_build_hook() -> type[BuildHookInterface]:  # type: ignore[type-arg]
    return Native


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python tools/build_native.py")
    parser.add_argument("--sanitize", action="store_true", help="with sanitizers, into build/sanitize")
    parser.add_argument("--wheels", action="store_true", help="wheels for others, into dist")
    parser.add_argument("--python", action="append", help=f"of --wheels; default: {' '.join(PYTHONS)}")
    parser.add_argument("--machine", action="append", choices=MACHINES, help="of --wheels; default: both")
    parser.add_argument(
        "--include", action="append", default=[], metavar="VERSION=DIR", help="where a Python's headers are"
    )
    parser.add_argument("--out", type=Path, default=Path("dist"))
    parser.add_argument("--uv", default="uv", help="the command that builds wheels and finds Pythons")
    given = parser.parse_args()
    here = Path(__file__).resolve().parent.parent
    if given.wheels:
        if shutil.which(given.uv) is None:
            print(f"{given.uv} is missing, which builds the wheels: --uv names it", file=sys.stderr)
            return 1
        missing = build_wheels(here, given)
        print("\n".join(missing), end="\n" if missing else "")
        return 1 if missing else 0
    try:
        compile_all(here, sanitized(here) if given.sanitize else this_python(here))
    except CannotCompileError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
