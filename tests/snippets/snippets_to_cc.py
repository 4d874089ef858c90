"""Prints a C++ source with the ```cpp blocks of documents.

    snippets_to_cc.py DOCUMENT.md...

Each block becomes the body of a function of its own, in a class derived from GuideScope
(guide_scope.h), whose members are the names that snippets use without declaring them. A line that
is `...` stands for what the snippet leaves out. Compiler errors name the document's line.

A block under <!-- path/of/a/file --> is a passage of that file, and left out here: the file itself
is compiled, and tools/check-docs compares the two.
"""

import re
import sys

_BLOCK = re.compile(r"^(<!-- \S+ -->\n+)?```cpp\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def snippets(text):
    """Returns (line number of its first line, code) of each block."""
    return [(text.count("\n", 0, block.start(2)) + 1, re.sub(r"(?m)^\.\.\.$", "", block[2]))
            for block in _BLOCK.finditer(text) if not block[1]]


def main(names):
    print('#include "tests/snippets/guide_scope.h"\n\n'
          '// The guides leave the handling of errors out.\n'
          '#pragma GCC diagnostic ignored "-Wunused-result"\n\nnamespace tessera_snippets {')
    count = 0
    for name in names:
        with open(name, encoding="utf-8") as document:
            text = document.read()
        for line, code in snippets(text):
            count += 1
            print(f"struct Snippet{count} : GuideScope {{\n  absl::Status Run();\n}};\n"
                  f"absl::Status Snippet{count}::Run() {{\n"
                  f'#line {line} "{name}"\n{code}  return absl::OkStatus();\n}}')
    print(f"int NumSnippets() {{ return {count}; }}\n}}  // namespace tessera_snippets")


if __name__ == "__main__":
    main(sys.argv[1:])
