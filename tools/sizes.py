"""Finds classes with too many responsibilities and functions that are too long. Pure: text in,
violations out.

It reads C++ well enough for this tree, not for any: namespaces, classes and their sections, heads
of functions and the brackets after them. What a macro makes is not seen.
"""

import collections
import re

from tools import type_names

MAX_PRIVATE_METHODS = 25
MAX_FUNCTION_LINES = 70

# `key` names the thing in a list of exceptions: "tessera::Outer::Inner" of a class, "path: Outer::Method"
# of a function, named as in its definition, "tessera::Class befriends Other" of a friend.
Violation = collections.namedtuple("Violation", ["path", "line", "key", "problem"])

_ACCESS = {"public", "protected", "private"}
_MACRO = re.compile(r"[A-Z][A-Z0-9_]{3,}$")  # A function may be named F1 or OK.
_NAME = re.compile(r"[A-Za-z_]\w*$")
_TAKES_ARGUMENTS = {"alignas", "decltype", "explicit", "noexcept"}
_NO_METHOD = {"using", "typedef", "friend", "static_assert"}


class _Scope:
    """What a `{` opened. kind: "namespace", "type", "function" or "other"."""

    def __init__(self, kind, names, line, access=None):
        self.kind, self.names, self.line, self.access = kind, names, line, access
        self.num_private_methods = 0


def _closing(tokens, index):
    """The index of the bracket that closes the one at `index`; the last one where none does."""
    pairs = {"(": ")", "[": "]", "<": ">"}
    opening, closing, depth = tokens[index], pairs[tokens[index]], 0
    for i in range(index, len(tokens)):
        depth += (tokens[i] == opening) - (tokens[i] == closing)
        if depth == 0:
            return i
    return len(tokens) - 1


def _parameters_at(head):
    """The index of the bracket with the parameters of the function that `head` declares, or None."""
    if _NO_METHOD & set(head):
        return None
    index = 0
    while index < len(head):
        token, before = head[index], head[index - 1] if index else ""
        if token == "operator":  # Its name is what comes up to the bracket; operator() has two.
            index = head.index("(", index)
            return index + 2 if head[index:index + 2] == ["(", ")"] and head[index + 2:index + 3] == ["("] else index
        if token == "=":
            return None
        if token in ("<", "["):
            index = _closing(head, index)
        elif token == "(":
            if not _NAME.match(before) or head[index + 1:index + 2] == ["*"]:
                return None
            if not _MACRO.match(before) and before not in _TAKES_ARGUMENTS:
                return index
            index = _closing(head, index)
        index += 1
    return None


def _name_before(head, index):
    """The name that ends before `index`: "F", "A::~A", "A::operator==", "TEST_F(A, B)"."""
    if "operator" in head[:index]:
        begin = head.index("operator")
    else:
        begin = index - 1
    name = "".join(head[begin:index])
    while begin >= 1:
        if head[begin - 1] == "~":
            begin, name = begin - 1, "~" + name
        elif head[begin - 1] == "::" and begin >= 2 and _NAME.match(head[begin - 2]):
            begin, name = begin - 2, head[begin - 2] + "::" + name
        else:
            break
    return name


def _function_named_by(head):
    """The name of the function that begins after `head`, or None where that defines none."""
    at = _parameters_at(head)
    if at is not None:
        return _name_before(head, at)
    if len(head) > 1 and _MACRO.match(head[0]) and head[1] == "(":  # TEST_F(A, B)
        return "".join(head[:_closing(head, 1) + 1]).replace(",", ", ")
    return None


def _initializes_a_member(head):
    """Whether the `{` after `head` is in the initializers of a constructor, not before its body."""
    at = _parameters_at(head)
    if at is None or not (_NAME.match(head[-1]) or head[-1] == ">"):
        return False
    return ":" in head[_closing(head, at):]


def _friend_in(head):
    """What `head` declares as a friend; empty where it declares no friend."""
    if "friend" not in head:
        return ""
    rest = [token for token in head[head.index("friend") + 1:]
            if token not in type_names.TYPE_KEYWORDS]
    return _name_before(rest, rest.index("(")) if "(" in rest else "".join(rest)


def _may_be_friend(name, scopes):
    """A test, or a class that the class with this friend is nested in."""
    last = name.split("::")[-1]
    return "Test" in last or any(last in scope.names for scope in scopes[:-1] if scope.kind == "type")


class _Reader:
    """Goes through the tokens of one file."""

    def __init__(self, path):
        self.path, self.found = path, []
        self.scopes, self.line = [], 1
        self._begin_head()

    def _begin_head(self):
        self.head, self.head_line, self.depth, self.braces = [], 0, 0, 0

    def _report(self, line, key, problem):
        self.found.append(Violation(self.path, line, key, problem))

    def _name(self, scopes):
        return "::".join(part for scope in scopes for part in scope.names)

    def _in_code(self):
        return bool(self.scopes) and self.scopes[-1].kind in ("function", "other")

    def read(self, token):
        if token == "\n":
            self.line += 1
        elif self._in_code():
            self._read_code(token)
        elif token == "{" and self.depth == 0 and not self.braces and not _initializes_a_member(self.head):
            self._open()
        elif token == ";" and self.depth == 0 and not self.braces:
            self._declare(is_defined=False)
            self._begin_head()
        elif token == "}" and not self.braces:
            self._close()
        else:
            self._read_head(token)

    def _read_code(self, token):
        if token == "{":
            self.scopes.append(_Scope("other", [], self.line))
        elif token == "}":
            self._close()

    def _read_head(self, token):
        if not self.head:
            self.head_line = self.line
        self.depth += {"(": 1, ")": -1}.get(token, 0)
        self.braces += {"{": 1, "}": -1}.get(token, 0)
        self.head.append(token)
        if token == ":" and len(self.head) == 2 and self.head[0] in _ACCESS:
            self.scopes[-1].access = self.head[0]
            self._begin_head()

    def _open(self):
        scope = type_names.scope_of(self.head)
        function = None if scope else _function_named_by(self.head)
        self._declare(is_defined=True)
        if scope and scope[0] == "namespace":
            opened = _Scope("namespace", scope[1], self.line)
        elif self.head == ["extern"]:  # extern "C"
            opened = _Scope("namespace", [], self.line)
        elif scope:
            is_class = "class" in self.head[:self.head.index(scope[1].split("<")[0].split("::")[0])]
            opened = _Scope("type", scope[1].split("::"), self.line,
                            "private" if is_class and "enum" not in self.head else "public")
        elif function:
            opened = _Scope("function", [function], self.head_line)
        else:
            opened = _Scope("other", [], self.line)
        self.scopes.append(opened)
        self._begin_head()

    def _declare(self, is_defined):
        """A declaration is complete, but for its body."""
        inner = self.scopes[-1] if self.scopes else None
        if not inner or inner.kind != "type":
            return
        friend = _friend_in(self.head)
        # One that is defined here is a part of the class: operator==, AbslHashValue.
        if friend and not is_defined and not _may_be_friend(friend, self.scopes):
            owner = self._name(self.scopes)
            self._report(self.head_line, f"{owner} befriends {friend}",
                         f"{owner} has the friend {friend}, which is no test")
        is_method = _parameters_at(self.head) is not None
        is_made_by_compiler = self.head[-2:] in (["=", "delete"], ["=", "default"])
        if inner.access == "private" and is_method and not is_made_by_compiler:
            inner.num_private_methods += 1

    def _close(self):
        self._begin_head()
        if not self.scopes:
            return
        name, scope = self._name(self.scopes), self.scopes.pop()
        num_lines = self.line - scope.line + 1
        if scope.num_private_methods > MAX_PRIVATE_METHODS:
            self._report(scope.line, name, f"{name} has {scope.num_private_methods} private methods, "
                         f"the limit is {MAX_PRIVATE_METHODS}")
        if scope.kind == "function" and num_lines > MAX_FUNCTION_LINES:
            self._report(scope.line, f"{self.path}: {scope.names[0]}", f"{scope.names[0]} has {num_lines} lines, "
                         f"the limit is {MAX_FUNCTION_LINES}")


def tokens(text):
    """The tokens of a file, line breaks among them, without comments, strings and preprocessor."""
    return type_names.TOKEN.findall(type_names.without_noise(text))


def violations(path, text):
    """Returns the Violations of one file, in the order of their lines."""
    reader = _Reader(path)
    for token in tokens(text):
        reader.read(token)
    return sorted(reader.found)


def without(found, exceptions):
    """Returns the violations that are not excepted, and the exceptions that except nothing."""
    keys = {violation.key for violation in found}
    return ([violation for violation in found if violation.key not in exceptions],
            sorted(key for key in exceptions if key not in keys))
