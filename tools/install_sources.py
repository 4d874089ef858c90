"""Which sources an installed Tessera has, where, and what their #include lines say there. Pure: paths
and text in, paths and text out.

    client/include/tessera/session.h   include/tessera/session.h
    client/c/tessera.h                 include/tessera.h
    layout/dtype.h                     include/tessera/layout/dtype.h, if a public header includes it
    client/torch/unit_windows.cc       share/tessera/src/client/torch/unit_windows.cc, and what it
                                       includes

A program's own folders may be called base or layout, so what public headers include is installed
under tessera/, and is included by that name.
"""

import re

_PUBLIC = "client/include/"
_C_INTERFACE = "client/c/tessera.h"
_INCLUDE = re.compile(r'^(\s*#\s*include\s*")([^"]+)(".*)$', re.M)


def includes(text, exists):
    """Yields (path in this repository, name in the line) of each header of ours that `text` includes."""
    for match in _INCLUDE.finditer(text):
        name = match.group(2)
        path = next((path for path in (_PUBLIC + name, name) if exists(path)), None)
        if path:
            yield path, name


def closure(paths, read, exists):
    """Returns `paths` and all of this repository that they include, as a set."""
    found, todo = set(), list(paths)
    while todo:
        path = todo.pop()
        if path not in found:
            found.add(path)
            todo += [header for header, _ in includes(read(path), exists)]
    return found


def place(path, public):
    """Returns where the tree has `path`; `public` is the closure of the public headers."""
    if path == _C_INTERFACE:
        return "include/tessera.h"
    if path.startswith(_PUBLIC):
        return "include/" + path[len(_PUBLIC):]
    return ("include/tessera/" if path in public else "share/tessera/src/") + path


def installed_text(text, public):
    """Returns `text` with #include lines that name what is under tessera/ so."""
    def rename(match):
        name = match.group(2)
        return match.group(1) + ("tessera/" if name in public else "") + name + match.group(3)
    return _INCLUDE.sub(rename, text)


def install(headers, sources, read, exists):
    """Returns {path in the tree: text} of the public `headers` and of `sources`, with what they include.

    Raises ValueError if a header that the build generates would be needed.
    """
    public = closure(headers, read, exists)
    tree = {}
    for path in sorted(public | closure(sources, read, exists)):
        text = read(path)
        generated = re.search(r'#\s*include\s*"([^"]*\.pb\.h)"', text)
        if generated:
            raise ValueError(f"{path} includes {generated.group(1)}, which no installed tree has")
        tree[place(path, public)] = installed_text(text, public)
    return tree
