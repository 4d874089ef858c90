"""The sources of this tree, as the checks of tools/ read them."""

import os
import re
import subprocess

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

SOURCE = re.compile(
    r"^(?:base|layout|job|net|proto|checkpoint|coordinator|worker|client|tests)/.*\.(?:h|cc|cu|cuh|c|inc)$")


def names():
    """Every source that git knows or would add."""
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others",
         "--exclude-standard"], cwd=TOP, check=True, stdout=subprocess.PIPE)
    return sorted({name for name in listed.stdout.decode().split("\0") if SOURCE.match(name)})


def sources(paths):
    """Yields (name from the top, text) of each of `paths`, or where there are none of every source."""
    for name in [os.path.relpath(os.path.abspath(path), TOP) for path in paths] or names():
        path = os.path.join(TOP, name)
        if os.path.isfile(path):  # Else it was removed, which is not yet committed.
            with open(path, encoding="utf-8") as source:
                yield name, source.read()
