"""Indexes of models in several safetensors files, valid, doubtful and hostile, and what
huggingface_hub and transformers make of them, as JSON in the file named as argument.

A case is a folder: model.safetensors.index.json and files of tensors of two equal elements. The
references load it, each its own way, into a model whose parameters are all -1. A case in which our
reader differs on purpose from huggingface_hub, which wrote the format, says why;
tests/conformance/safetensors holds it to that.
"""

import json
import os
import sys
import tempfile

if os.environ.get("PYTHONHASHSEED") != "0":  # huggingface_hub goes through a set of file names.
    os.execve(sys.executable, [sys.executable, "-B", "-W", "ignore", *sys.argv],
              {**os.environ, "PYTHONHASHSEED": "0"})

# pylint: disable=wrong-import-position
import huggingface_hub
import torch
import transformers
from safetensors.torch import save_file

UNTOUCHED = -1.0
INDEX = "model.safetensors.index.json"
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"

# Why our reader refuses what the reference takes.
TWICE = "JSON leaves open which of two equal keys counts, and parsers differ"
LIES = "an index and files that say different things are no model; which of them is right is nobody's guess"
TEXT = "it is no JSON, and other readers refuse it"
DOTS = "a path is said in one way, so that one file has one name; no writer says it so"
# Why it takes what the reference refuses.
WINDOWS = "only on another system is that a path which leaves the folder; here it is a plain name"
NAME = "what a file is, its first bytes say; its name is not asked"


def module(base, names):
    """`base` with a parameter of each dotted name, filled with UNTOUCHED."""
    for name in names:
        *path, last = name.split(".")
        at = base
        for part in path:
            if not hasattr(at, part):
                at.add_module(part, torch.nn.Module())
            at = getattr(at, part)
        at.register_parameter(last, torch.nn.Parameter(torch.full((2,), UNTOUCHED)))
    return base


class TinyConfig(transformers.PretrainedConfig):
    model_type = "tiny"

    def __init__(self, names=(), **options):
        super().__init__(**options)
        self.names = list(names)


class Tiny(transformers.PreTrainedModel):
    config_class = TinyConfig

    def __init__(self, config):
        super().__init__(config)
        module(self, config.names)
        self.post_init()

    def _init_weights(self, module):
        for parameter in module.parameters(recurse=False):
            parameter.data.fill_(UNTOUCHED)


def load_hub(folder, names):
    model = module(torch.nn.Module(), names)
    huggingface_hub.load_torch_model(model, folder, strict=True)
    return model


def load_transformers(folder, names):
    TinyConfig(names=names).save_pretrained(folder)
    model, told = Tiny.from_pretrained(folder, output_loading_info=True)
    if told["unexpected_keys"]:
        raise ValueError("tensors that the model does not have")
    return model


def verdict(load, folder, names):
    """What each parameter holds then; None: it was refused."""
    try:
        model = load(folder, names)
    except Exception:  # pylint: disable=broad-except
        return None
    return {name: parameter[0].item() for name, parameter in model.named_parameters()}


class Cases:
    def __init__(self):
        self.rows = []

    def add(self, what, index, files=None, why=None, names=("a", "b.c"), inner="."):
        """`index`: its bytes, text, or what JSON makes the text of. `files`: of each its tensors
        and their value; or its bytes. `why`: our reader differs from huggingface_hub."""
        if not isinstance(index, (bytes, str)):
            index = json.dumps(index)
        index = index if isinstance(index, bytes) else index.encode()
        files = {ONE: {"a": 1.0}, TWO: {"b.c": 2.0}} if files is None else files
        row = {"what": what, "index": index.decode("latin-1"), "folder": inner, "files": files}
        with tempfile.TemporaryDirectory() as outer:
            folder = os.path.join(outer, inner)
            for name, tensors in files.items():
                path = os.path.join(outer, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                save_file({tensor: torch.full((2,), value) for tensor, value in tensors.items()},
                          path)
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, INDEX), "wb") as file:
                file.write(index)
            row["huggingface_hub"] = verdict(load_hub, folder, names)
            row["transformers"] = verdict(load_transformers, folder, names)
        if why is not None:
            row["we_differ"] = why
        self.rows.append(row)


MAP = {"a": ONE, "b.c": TWO}


def indexed(weight_map=None, **more):
    return {"metadata": {"total_size": 16}, "weight_map": MAP if weight_map is None else weight_map,
            **more}


def forms(cases):
    cases.add("as huggingface_hub writes it", json.dumps(indexed(), indent=2) + "\n")
    cases.add("without metadata", {"weight_map": MAP})
    cases.add("metadata null", {"metadata": None, "weight_map": MAP})
    cases.add("metadata a list", {"metadata": [], "weight_map": MAP})
    for total in (0, 15, -1, 1.5, "16", None, 2**64, []):
        cases.add(f"total_size {total!r}", {"metadata": {"total_size": total}, "weight_map": MAP})
    cases.add("a field more", indexed(extra=[1, {"x": None}]))
    cases.add("metadata more", {"metadata": {"total_size": 16, "format": "pt", "x": [1]},
                                "weight_map": MAP})
    cases.add("without weight_map", {"metadata": {}})
    for value in (None, [], {}, 7, "x", [["a", ONE]]):
        cases.add(f"weight_map {json.dumps(value)}"[:40], indexed() | {"weight_map": value})
    cases.add("weight_map a text of JSON", indexed() | {"weight_map": json.dumps(MAP)})
    for value in ([], 7, "x", None, [indexed()]):
        cases.add(f"the whole is {json.dumps(value)}"[:40], value)
    cases.add("one file for both", indexed({"a": ONE, "b.c": ONE}), {ONE: {"a": 1.0, "b.c": 2.0}})


def texts(cases):
    whole = json.dumps(indexed())
    pair = '"a": "%s"' % ONE
    assert pair in whole
    for what, text, why in (
            ("nothing", "", None),
            ("half of it", whole[:len(whole) // 2], None),
            ("something behind it", whole + "x", None),
            ("spaces around it", " \n" + whole + "\n \t", None),
            ("a comma more", whole.replace("}}", "},}"), None),
            ("a comment", "// model\n" + whole, None),
            ("single quotes", whole.replace('"', "'"), None),
            ("NaN", whole.replace("16", "NaN"), TEXT),
            ("Infinity", whole.replace("16", "-Infinity"), TEXT),
            ("a number that begins with 0", whole.replace("16", "016"), None),
            ("a tensor twice, alike", whole.replace(pair, pair + ", " + pair), TWICE),
            ("a tensor twice, the right one last",
             whole.replace(pair, '"a": "%s", %s' % (TWO, pair)), TWICE),
            ("a tensor twice, escaped", whole.replace(pair, pair + ', "\\u0061": "%s"' % ONE), TWICE),
            ("weight_map twice", whole[:-1] + ', "weight_map": ' + json.dumps(MAP) + "}", TWICE),
            ("metadata twice", whole[:-1] + ', "metadata": {}}', TWICE),
            ("a name escaped", whole.replace('"a"', '"\\u0061"'), None),
            ("half a surrogate in a field", whole.replace('"total_size"', '"\\ud83d"'), TEXT),
            ("a newline in a field's name", whole.replace('"total_size"', '"total\nsize"'), None),
            ("deep, of no use", whole[:-1] + ', "x": ' + "[" * 90 + "]" * 90 + "}", None)):
        cases.add("text: " + what, text, why=why)
    cases.add("text: a byte order mark", b"\xef\xbb\xbf" + whole.encode())
    cases.add("text: UTF-16", whole.encode("utf-16"))
    cases.add("text: no UTF-8", whole.replace("total_size", "total\xffsize").encode("latin-1"))
    cases.add("text: bytes of 0 behind it", whole.encode() + b"\0")


def names_of_files(cases):
    def one(what, name, why=None, at=None, inner="."):
        """Tensor "a" is in the file of that name, which lies there or `at`."""
        cases.add("file " + what, indexed({"a": name, "b.c": TWO}),
                  {(at or name): {"a": 1.0}, os.path.normpath(os.path.join(inner, TWO)): {"b.c": 2.0}},
                  why, inner=inner)

    one("of another name", "x.safetensors")
    one("in a folder of it", "part/x.safetensors")
    one("by a path with a dot", "./x.safetensors", DOTS, at="x.safetensors")
    one("by a path with two slashes", "part//x.safetensors", DOTS, at="part/x.safetensors")
    one("by a path there and back", "part/../x.safetensors", at="x.safetensors")
    one("in the folder above", "../x.safetensors", at="x.safetensors", inner="inner")
    one("by a path that leaves it and comes back", "../inner/x.safetensors",
        at="inner/x.safetensors", inner="inner")
    one("by an absolute path", "/nobody/x.safetensors", at="x.safetensors")
    one("by a path with a drive", "c:x.safetensors", WINDOWS)
    one("by a path with backslashes", "..\\x.safetensors", WINDOWS)
    one("with a space", "x y.safetensors")
    one("of a name in other letters", "\u00e9\u4e2d.safetensors")
    one("whose name ends otherwise", "x.bin", NAME)
    one("whose name has no end", "x", NAME)
    one("whose name ends in capitals", "x.SAFETENSORS", NAME)
    one("of a name that begins with dots", "..x.safetensors")
    one("that is the index", INDEX, at="x.safetensors")
    for name in ("", ".", "..", "/", None, 7, [ONE], {"x": ONE}, True):
        cases.add(f"file {json.dumps(name)}", indexed({"a": name, "b.c": TWO}))


def contents(cases):
    cases.add("a file is not there", indexed(), {ONE: {"a": 1.0}})
    cases.add("a file that nobody names", indexed(),
              {ONE: {"a": 1.0}, TWO: {"b.c": 2.0}, "x.safetensors": {"x": 3.0}})
    cases.add("a tensor is in another file", indexed({"a": TWO, "b.c": ONE}), why=LIES)
    cases.add("a tensor is in no file", indexed({"a": ONE, "b.c": TWO, "d": TWO}), why=LIES)
    cases.add("a tensor that the model wants is in no file", indexed({"a": ONE, "b.c": TWO, "d": TWO}),
              names=("a", "b.c", "d"))
    cases.add("a tensor that the index lacks", indexed({"a": ONE, "b.c": TWO}),
              {ONE: {"a": 1.0, "d": 4.0}, TWO: {"b.c": 2.0}}, names=("a", "b.c", "d"), why=LIES)
    cases.add("a tensor that nobody wants and the index lacks", indexed(),
              {ONE: {"a": 1.0, "d": 4.0}, TWO: {"b.c": 2.0}})
    cases.add("a tensor in two files, alike", indexed(),
              {ONE: {"a": 1.0}, TWO: {"a": 1.0, "b.c": 2.0}}, LIES)
    cases.add("a tensor in two files that differ", indexed(),
              {ONE: {"a": 1.0}, TWO: {"a": 9.0, "b.c": 2.0}}, LIES)
    cases.add("a tensor in a file that nobody names, too", indexed({"a": TWO, "b.c": TWO}),
              {ONE: {"a": 9.0}, TWO: {"a": 1.0, "b.c": 2.0}})
    cases.add("a tensor in two files that differ, the other way",
              indexed({"a": TWO, "b.c": TWO, "d": ONE}),
              {ONE: {"a": 9.0, "d": 4.0}, TWO: {"a": 1.0, "b.c": 2.0}}, LIES, names=("a", "b.c", "d"))
    cases.add("two names for one file", indexed({"a": ONE, "b.c": "./" + ONE}),
              {ONE: {"a": 1.0, "b.c": 2.0}}, DOTS)


def main():
    transformers.logging.set_verbosity_error()
    cases = Cases()
    for fill in (forms, texts, names_of_files, contents):
        fill(cases)
    lines = ",\n".join("  " + json.dumps(row) for row in cases.rows)
    with open(sys.argv[1], "w", encoding="ascii") as out:
        out.write('{\n "huggingface_hub": "%s",\n "transformers": "%s",\n "cases": [\n%s\n ]\n}\n' %
                  (huggingface_hub.__version__, transformers.__version__, lines))


if __name__ == "__main__":
    main()
