"""The program `tandem` of the package, apart from :mod:`tandem` because that imports torch, which takes seconds."""

import os
import pathlib
import sys
from typing import NoReturn

_PROGRAM = pathlib.Path(__file__).parent / "tandem"


def main() -> NoReturn:
    """Becomes the program, with this process's arguments."""
    if not _PROGRAM.exists():
        sys.exit(
            f"tandem: no program in {_PROGRAM.parent}: this package was built where CLI11, nlohmann_json, fmt or, with "
            "CUDA, cuBLAS was missing (Debian: libcli11-dev nlohmann-json3-dev libfmt-dev); install them and it anew"
        )
    os.execv(_PROGRAM, ["tandem", *sys.argv[1:]])
