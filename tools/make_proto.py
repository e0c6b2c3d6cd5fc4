"""Makes the Python modules of mqlake.proxy.v2 from its .proto files; `--check` only says whether they are up to date.

Run it after a change of a .proto file, and commit what it writes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

SOURCE = Path(__file__).resolve().parent.parent / "src"
PROTOS = ("mqlake/proxy/v2/definition.proto", "mqlake/proxy/v2/service.proto")


def generate(target: Path) -> None:
    well_known = str(files("grpc_tools") / "_proto")
    options = [f"-I{SOURCE}", f"-I{well_known}", f"--python_out={target}", f"--pyi_out={target}"]
    if protoc.main(["protoc", *options, *PROTOS]):
        raise SystemExit("protoc failed")


def stale() -> list[str]:
    """The generated files that differ from what the .proto files give now."""
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory)
        generate(made)
        names = [path.relative_to(made) for path in sorted(made.rglob("*.py*"))]
        return [
            str(name)
            for name in names
            if not (SOURCE / name).exists() or (SOURCE / name).read_bytes() != (made / name).read_bytes()
        ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit status 1 if a file is stale"
    )
    if not parser.parse_args().check:
        generate(SOURCE)
        return 0
    found = stale()
    print("\n".join(f"src/{name}: run tools/make_proto.py" for name in found) or "generated code: up to date")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
