"""Prints C++ that holds the files of the page: embed.py FILE... (a genrule runs it)."""

import os
import sys

TYPES = {".css": "text/css; charset=utf-8", ".html": "text/html; charset=utf-8",
         ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
MOST = 8000  # Bytes of one literal: compilers need not take more than 65,536.


def literals(text):
    data = text.encode()
    for begin in range(0, len(data), MOST):
        escaped = "".join(
            chr(byte) if 32 <= byte < 127 and byte not in b'"\\?' else f"\\{byte:03o}"
            for byte in data[begin:begin + MOST])
        yield f'    "{escaped}"'


def main(paths):
    print('#include "client/dashboard/page_files.h"\n\nnamespace tessera::dashboard {\n')
    print("const std::vector<PageFile>& PageFiles() {")
    print("  static const auto* const files = new std::vector<PageFile>{")
    for path in sorted(paths, key=os.path.basename):
        name = os.path.basename(path)
        with open(path, encoding="utf-8") as source:
            text = "\n".join(literals(source.read()))
        print(f'   {{"/{"" if name == "index.html" else name}", "{TYPES[os.path.splitext(name)[1]]}",\n'
              f"{text}}},")
    print("  };\n  return *files;\n}\n\n}  // namespace tessera::dashboard")


if __name__ == "__main__":
    main(sys.argv[1:])
