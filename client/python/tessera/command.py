"""The command `tessera`: `tessera run` starts a job here; everything else is the program's."""

from __future__ import annotations

import os
import sys


def main() -> int:
    if sys.argv[1:2] == ["run"]:
        from . import run
        return run.main(sys.argv[2:])
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "tessera")
    os.execv(program, ["tessera", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
