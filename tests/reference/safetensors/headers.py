"""Headers of safetensors files, valid, doubtful and hostile, and whether the reference takes them.

Run by tools/safetensors-reference, which gives it the path of the file to write.
"""

import json
import random
import sys

import safetensors

BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}
SEED = 24


def entry(dtype, shape, begin, end):
    """One tensor as a header has it."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def text(value):
    return json.dumps(value, separators=(",", ":"))


class Cases:
    def __init__(self):
        self.rows = []

    def add(self, what, header, data_bytes, declared=None):
        """`header`: bytes, or text; `declared`: the size that the file's first eight bytes say."""
        header = header if isinstance(header, bytes) else header.encode()
        declared = len(header) if declared is None else declared
        file = declared.to_bytes(8, "little") + header + bytes(data_bytes)
        try:
            safetensors.deserialize(file)
            accepts = True
        except Exception:  # pylint: disable=broad-except
            accepts = False
        self.rows.append({"what": what, "declared_bytes": str(declared),
                          "header": header.decode("latin-1"), "data_bytes": data_bytes,
                          "accepts": accepts})


def dtypes(cases):
    for dtype, bits in BITS.items():
        for shape in ([], [0], [1], [2], [3], [8], [2, 3], [4, 0, 5]):
            numel = 1
            for size in shape:
                numel *= size
            size_bytes = numel * bits // 8
            cases.add(f"{dtype} of {shape}", text({"t": entry(dtype, shape, 0, size_bytes)}), size_bytes)
        cases.add(f"{dtype}, a byte more", text({"t": entry(dtype, [8], 0, bits + 1)}), bits + 1)
        cases.add(f"{dtype}, a byte less", text({"t": entry(dtype, [8], 0, bits - 1)}), bits - 1)
    for dtype in ("Q8", "f32", "F8", "FP32", "F128", "", "F32 ", "C128", "E8M0", "I4"):
        cases.add(f"dtype {dtype!r}", text({"t": entry(dtype, [1], 0, 4)}), 4)
    for dtype in (None, 32, ["F32"], True):
        cases.add(f"dtype {dtype!r}", text({"t": entry(dtype, [1], 0, 4)}), 4)


def places(cases):
    a, b, empty = entry("F32", [1], 0, 4), entry("F32", [1], 4, 8), entry("F32", [0], 4, 4)
    cases.add("no tensor", "{}", 0)
    cases.add("no tensor but data", "{}", 1)
    cases.add("two tensors", text({"a": a, "b": b}), 8)
    cases.add("two tensors, the last first", text({"b": b, "a": a}), 8)
    cases.add("an empty one between", text({"a": a, "e": empty, "b": b}), 8)
    cases.add("an empty one at the end", text({"a": a, "e": entry("F32", [0], 4, 4)}), 4)
    cases.add("an empty one beyond the end", text({"a": a, "e": entry("F32", [0], 8, 8)}), 4)
    cases.add("an empty one inside", text({"a": a, "e": entry("F32", [0], 2, 2)}), 4)
    cases.add("a hole at the start", text({"b": b}), 8)
    cases.add("a hole between", text({"a": a, "c": entry("F32", [1], 5, 9)}), 9)
    cases.add("an overlap", text({"a": a, "c": entry("F32", [1], 3, 7)}), 7)
    cases.add("the same bytes twice", text({"a": a, "c": a}), 4)
    cases.add("end before begin", text({"a": entry("F32", [1], 4, 0)}), 4)
    cases.add("data too long", text({"a": a}), 5)
    cases.add("data too short", text({"a": a}), 3)
    cases.add("no data", text({"a": a}), 0)
    cases.add("a shape that overflows", text({"a": entry("F32", [2**32, 2**32], 0, 4)}), 4)
    cases.add("a shape that overflows to 0", text({"a": entry("F32", [2**32, 2**32], 0, 0)}), 0)
    cases.add("a shape that overflows, and a 0", text({"a": entry("F32", [2**63, 4, 0], 0, 0)}), 0)
    cases.add("a 0, and a shape that would overflow", text({"a": entry("F32", [0, 2**63, 4], 0, 0)}), 0)
    cases.add("bits that overflow", text({"a": entry("F64", [2**58], 0, 0)}), 0)


def numbers(cases):
    for number in ("-1", "-0", "0.0", "1.0", "1e0", "01", "+1", "\"1\"", "true", "null", "[1]", "{}",
                   "18446744073709551615", "18446744073709551616", "9223372036854775808", "0x1", "1 ",
                   "NaN", "Infinity", "1_0", ""):
        cases.add(f"shape [{number}]", '{"a":{"dtype":"U8","shape":[%s],"data_offsets":[0,1]}}' % number, 1)
        cases.add(f"begin {number}", '{"a":{"dtype":"U8","shape":[0],"data_offsets":[%s,0]}}' % number, 0)
        cases.add(f"end {number}", '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,%s]}}' % number, 1)
    for offsets in ("[]", "[0]", "[0,1,1]", "null", "{}", "0", '"0,1"', "[[0,1]]", "[0,1,]"):
        cases.add(f"data_offsets {offsets}",
                  '{"a":{"dtype":"U8","shape":[1],"data_offsets":%s}}' % offsets, 1)
    for shape in ("null", "{}", "1", '""', "[,]", "[1,]", "[[1]]"):
        cases.add(f"shape {shape}", '{"a":{"dtype":"U8","shape":%s,"data_offsets":[0,1]}}' % shape, 1)


def keys(cases):
    a = text(entry("U8", [1], 0, 1))
    for name in ("", " ", "a.b", "\\u0000", "\\u00e9", "\\ud83d\\ude00", "\\ud83d", "\\ude00", "\\q", "\\u12",
                 "\t", "\n", "é", "__metadata__x", "../a", "a" * 2000):
        cases.add(f"name {name[:20]!r}", '{"%s":%s}' % (name, a), 1)
    cases.add("a name that is not UTF-8", b'{"\xff":' + a.encode() + b"}", 1)
    cases.add("a name in overlong UTF-8", b'{"\xc0\xaf":' + a.encode() + b"}", 1)
    cases.add("a name with a surrogate in UTF-8", b'{"\xed\xa0\x80":' + a.encode() + b"}", 1)
    cases.add("one tensor twice, alike", '{"a":%s,"a":%s}' % (a, a), 1)
    cases.add("one tensor twice, another place", '{"a":%s,"a":%s}' % (a, text(entry("U8", [1], 1, 2))), 2)
    cases.add("one tensor twice, escaped", '{"a":%s,"\\u0061":%s}' % (a, a), 1)
    for twice in ('"dtype":"U8"', '"shape":[1]', '"data_offsets":[0,1]'):
        cases.add(f"{twice} twice", '{"a":%s,%s}}' % (a[:-1], twice), 1)
    cases.add("a field more", '{"a":%s,"strides":[1]}}' % a[:-1], 1)
    cases.add("a field more, deep", '{"a":%s,"x":%s}}' % (a[:-1], "[" * 90 + "]" * 90), 1)
    cases.add("a field more, too deep", '{"a":%s,"x":%s}}' % (a[:-1], "[" * 500 + "]" * 500), 1)
    for left_out in ("dtype", "shape", "data_offsets"):
        fields = entry("U8", [1], 0, 1)
        del fields[left_out]
        cases.add(f"no {left_out}", text({"a": fields}), 1)
    cases.add("fields in another order", '{"a":{"data_offsets":[0,1],"shape":[1],"dtype":"U8"}}', 1)
    cases.add("fields as an array", '{"a":["U8",[1],[0,1]]}', 1)
    for value in ("null", "1", '"x"', "[]", "{}", "true"):
        cases.add(f"a tensor that is {value}", '{"a":%s}' % value, 1)


def metadata(cases):
    a = text(entry("U8", [1], 0, 1))
    for value in ("{}", '{"format":"pt"}', "null", "[]", '"x"', "1", '{"k":1}', '{"k":null}', '{"k":{}}',
                  '{"":""}', '{"k":"\\u0000"}', '{"k":"a","k":"b"}', '{"k":["a"]}', a):
        cases.add(f"__metadata__ {value}", '{"__metadata__":%s,"a":%s}' % (value, a), 1)
    cases.add("__metadata__ last", '{"a":%s,"__metadata__":{"k":"v"}}' % a, 1)
    cases.add("__metadata__ alone", '{"__metadata__":{"k":"v"}}', 0)
    cases.add("__metadata__ twice", '{"__metadata__":{"k":"v"},"__metadata__":{"l":"w"},"a":%s}' % a, 1)


def syntax(cases):
    a = '{"a":%s}' % text(entry("U8", [1], 0, 1))
    for what, header in (("as it is", a), ("padded", a + " " * 5), ("newline behind", a + "\n"),
                         ("tabs behind", a + "\t\r\n"), ("NUL behind", a + "\0"), ("space before", " " + a),
                         ("newline before", "\n" + a), ("BOM before", "\ufeff" + a), ("twice", a + a),
                         ("comma behind", a + ","), ("brace behind", a + "}"), ("cut", a[:-1]),
                         ("a comma too many", a[:-1] + ",}"), ("a comment", a[:-1] + "/* */}"),
                         ("single quotes", a.replace('"', "'")), ("no quotes", a.replace('"', "")),
                         ("spaces inside", a.replace(":", " : ").replace(",", " ,\n")),
                         ("an array", "[" + a + "]"), ("a string", '"a"'), ("nothing", ""), ("spaces", "    "),
                         ("null", "null"), ("a number", "1"), ("one brace", "{"), ("a NUL", "\0")):
        cases.add(what, header, 1)
    for declared in (0, 1, 7, len(a) - 1, len(a) + 1, len(a) + 2, 100_000_000, 100_000_001, 2**32, 2**63 - 1,
                     2**63, 2**64 - 8, 2**64 - 1):
        cases.add(f"a size of {declared}", a, 1, declared)


def mutations(cases):
    a = text({"__metadata__": {"format": "pt"}, "a": entry("F32", [2, 3], 0, 24), "b": entry("F16", [3], 24, 30)})
    rng = random.Random(SEED)
    for number in range(200):
        header = bytearray(a.encode())
        for _ in range(rng.randint(1, 2)):
            at, kind = rng.randrange(len(header)), rng.randrange(4)
            if kind == 0:
                header[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                header[at] = rng.choice(b'0123456789"{}[],: ')
            elif kind == 2:
                del header[at]
            else:
                header.insert(at, rng.choice(b'0123456789"{}[],: \\'))
        cases.add(f"mutation {number} of seed {SEED}", bytes(header), 30)


def main():
    cases = Cases()
    for fill in (dtypes, places, numbers, keys, metadata, syntax, mutations):
        fill(cases)
    lines = ",\n".join("  " + json.dumps(row) for row in cases.rows)
    with open(sys.argv[1], "w", encoding="ascii") as out:
        out.write('{\n "safetensors": "%s",\n "cases": [\n%s\n ]\n}\n' % (safetensors.__version__, lines))


if __name__ == "__main__":
    main()
