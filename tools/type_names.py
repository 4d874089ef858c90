"""Finds type names that two source files define in one namespace. Pure: text in, names out.

Two different classes of one qualified name in one program are undefined behaviour: the linker keeps
one of their inline functions and vtables and says nothing. Types in an anonymous namespace, in a
function and in a class that is itself unique are no risk and are not looked at.
"""

import collections
import re

Definition = collections.namedtuple("Definition", ["name", "path", "line"])

# What is removed before anything is read; line breaks stay, so that lines can be counted.
_NOISE = re.compile(
    r"""//[^\n]*                                             # comment
      | /\*.*?\*/
      | R"(?P<delimiter>[^()\s\\]{0,16})\(.*?\)(?P=delimiter)"   # raw string
      | "(?:\\.|[^"\\\n])*"
      | (?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'                     # character; 1'000'000 is a number
      | ^[ \t]*\#(?:[^\n\\]|\\.|\\\n)*                          # preprocessor line
    """, re.VERBOSE | re.DOTALL | re.MULTILINE)
TOKEN = re.compile(r"[A-Za-z_]\w*|::|[{};<>()\[\],=:]|\n|\S")
TYPE_KEYWORDS = {"class", "struct", "union", "enum"}
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*$")
_ENDS_A_HEAD = {"{", ";", "}"}


def without_noise(text):
    return _NOISE.sub(lambda match: "\n" * match.group().count("\n") or " ", text)


def scope_of(head):
    """What `{` opens after the tokens of `head`: ("namespace", [parts]), ("type", name) or None.

    A namespace without a name has no parts.
    """
    if "namespace" in head:
        return "namespace", [token for token in head[head.index("namespace") + 1:] if token != "::"]
    depth = 0
    for index, token in enumerate(head):
        depth += {"<": 1, ">": -1}.get(token, 0)
        if depth == 0 and token in TYPE_KEYWORDS:
            return _type_named_by(head[index + 1:])
        if depth == 0 and token in ("(", "="):
            return None  # A function, or a value in braces.
    return None


def _type_named_by(rest):
    """The type that the tokens behind `class` define, or None where they declare something else."""
    name, depth = "", 0
    for index, token in enumerate(rest):
        if token == "=" or (token == "(" and depth == 0 and not _takes_arguments(name)):
            return None  # `struct stat kNone = {`, `struct stat Look() {`
        depth += {"<": 1, ">": -1, "(": 1, ")": -1, "[": 1, "]": -1}.get(token, 0)
        if depth == 0 and token in (":", "final"):
            break
        if depth == 0 and token == ">":
            name += "<" + "".join(rest[rest.index("<") + 1:index]) + ">"
        elif depth == 0 and _IDENTIFIER.match(token) and token not in TYPE_KEYWORDS:
            # Macros and attributes come before the name. Outer::Inner is one name.
            name = name + "::" + token if name and rest[index - 1] == "::" else token
    return ("type", name) if name else None


def _takes_arguments(word):
    """Whether `word` is a macro or specifier that may stand before the name of a type."""
    return word == "alignas" or word.isupper()


def definitions(path, text):
    """Returns the Definitions of named types of namespaces in the text of one file."""
    found, scopes, head, line = [], [], [], 1
    for token in TOKEN.findall(without_noise(text)):
        if token == "\n":
            line += 1
            continue
        if token not in _ENDS_A_HEAD:
            head.append(token)
            continue
        if token == "{":
            scope = scope_of(head)
            in_namespaces = all(kind == "namespace" and parts for kind, parts in scopes)
            if scope and scope[0] == "type" and in_namespaces:
                parts = [part for _, parts in scopes for part in parts]
                found.append(Definition("::".join(parts + [scope[1]]), path, line))
            scopes.append(scope or ("other", None))
        elif token == "}" and scopes:
            scopes.pop()
        head = []
    return found


def clashes(all_definitions, exceptions):
    """Returns [(name, [Definition, ...])] of names that several files define, without exceptions."""
    by_name = collections.defaultdict(list)
    for definition in all_definitions:
        by_name[definition.name].append(definition)
    return sorted((name, sorted(where)) for name, where in by_name.items()
                  if len({definition.path for definition in where}) > 1 and name not in exceptions)
