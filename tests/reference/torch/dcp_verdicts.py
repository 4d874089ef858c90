"""DCP folders, valid, doubtful and hostile, and what PyTorch makes of them, as JSON in the file
named as argument.

Each holds one tensor "w" of 4 elements, 1 to 4, in two chunks, or is this with one thing changed.
The reference is torch.distributed.checkpoint.load into a tensor of that shape that holds -1. A case
in which our reader differs on purpose says why; tests/conformance/dcp holds it to that.
"""

import base64
import copy
import io
import json
import os
import pickle
import re
import sys
import tempfile

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata, ChunkStorageMetadata, Metadata, MetadataIndex, StorageMeta,
    TensorProperties, TensorStorageMetadata)

FILE = "__0_0.distcp"
UNTOUCHED = -1.0
ABSOLUTE = "/tmp/tessera-dcp-verdicts"  # There while one case is tried.

# Why our reader refuses what the reference takes.
EXECUTES = "the reference executes it; here a name that is not of the format is refused"
OLD_PICKLE = "PyTorch writes protocol 2 or higher; older opcodes are not among those that are read"
HOLE = "the reference leaves those elements as they were; here every element has a value or the folder none"
TWICE = "two chunks say what one element is, and which of them counts is left to chance"
STRAY = "a folder in which one thing is not what another says is damaged, and is not read in parts"
OUTSIDE = "a folder of somebody's does not say which other files of this machine are read"
STRUCTURE = "the format has something else there, and what lacks it was not written by DCP"
DOTS = "a path is said in one way, so that one file has one name; no writer says it so"
LEGACY = "DCP writes zips; the older form of torch.save is a stream of pickles"
PARAMETER = "DCP detaches what it saves; a parameter's class is not among the names that are read"
PLAIN = "planner data are texts and small numbers; nothing else is among what is read"


def saved(value, **options):
    """What torch.save writes."""
    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


def floats(*values):
    return torch.tensor(values, dtype=torch.float32)


class Folder:
    """Two chunks and their metadata, to be changed."""

    def __init__(self, chunks=None, shape=(4,), dtype=torch.float32):
        # Of each chunk: offsets, sizes and the item, which is what torch.save wrote.
        if chunks is None:
            chunks = [((0,), (2,), saved(floats(1, 2))), ((2,), (2,), saved(floats(3, 4)))]
        self.files = {FILE: b""}
        self.tensor = TensorStorageMetadata(
            properties=TensorProperties(dtype=dtype), size=torch.Size(shape), chunks=[])
        self.places = {}
        for offsets, sizes, item in chunks:
            self.tensor.chunks.append(ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)))
            self.places[MetadataIndex("w", torch.Size(offsets))] = _StorageInfo(
                FILE, len(self.files[FILE]), len(item))
            self.files[FILE] += item
        self.metadata = Metadata(state_dict_metadata={"w": self.tensor}, planner_data={"w": ("w",)},
                                 storage_data=self.places,
                                 storage_meta=StorageMeta(save_id="save"), version="1.0.0")

    def place(self, offset=0):
        return self.places[MetadataIndex("w", torch.Size([offset]))]

    def write(self, pickled=None, protocol=pickle.DEFAULT_PROTOCOL):
        self.files[".metadata"] = (pickle.dumps(self.metadata, protocol=protocol)
                                   if pickled is None else pickled)
        return self.files


class Runs:
    """What a pickle may hold: a function and its arguments, called by who reads it."""

    def __init__(self, function, arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


class Cases:
    def __init__(self):
        self.rows = []
        self.contents = []  # Of files, each once.

    def number_of(self, content):
        text = base64.b64encode(content).decode("ascii")
        if text not in self.contents:
            self.contents.append(text)
        return self.contents.index(text)

    def add(self, what, files, why=None, shape=(4,), inner="."):
        """`why`: our reader differs. `inner`: where among the files the folder is."""
        with tempfile.TemporaryDirectory() as outer:
            folder = os.path.join(outer, inner)
            os.makedirs(folder, exist_ok=True)
            for name, content in files.items():
                with open(os.path.join(outer, name), "wb") as file:
                    file.write(content)
            target = {"w": torch.full(shape, UNTOUCHED)}
            try:
                dcp.load(target, storage_reader=dcp.FileSystemReader(folder), no_dist=True)
                values = target["w"].reshape(-1).tolist()
            except BaseException:  # pylint: disable=broad-except # CheckpointException is one.
                values = None
        row = {"what": what, "loads": values is not None}
        if values is not None:
            row["values"] = values
        if why is not None:
            row["we_differ"] = why
        row["folder"] = inner
        row["files"] = {name: self.number_of(content) for name, content in sorted(files.items())}
        self.rows.append(row)


def chunks_of(rows):
    return [((begin,), (len(values),), saved(floats(*values))) for begin, values in rows]


def chunks(cases):
    cases.add("as DCP writes it", Folder().write())
    for what, rows, why in (
            ("one chunk", [(0, [1, 2, 3, 4])], None),
            ("the last chunk first", [(2, [3, 4]), (0, [1, 2])], None),
            ("four chunks", [(i, [i + 1]) for i in range(4)], None),
            ("an empty chunk more", [(0, [1, 2]), (2, [3, 4]), (4, [])], None),
            ("no chunk", [], HOLE),
            ("a hole at the start", [(2, [3, 4])], HOLE),
            ("a hole between", [(0, [1]), (3, [4])], HOLE),
            ("a hole at the end", [(0, [1, 2, 3])], HOLE),
            ("chunks that overlap and agree", [(0, [1, 2, 3]), (2, [3, 4])], TWICE),
            ("chunks that overlap and leave a hole", [(0, [1, 2]), (1, [2, 3])], TWICE),
            ("a chunk that reaches outside", [(0, [1, 2]), (2, [3, 4, 5])], STRAY),
            ("a chunk outside", [(0, [1, 2, 3, 4]), (4, [5])], STRAY)):
        cases.add(what, Folder(chunks_of(rows)).write(), why)
    twice = Folder()
    twice.tensor.chunks.append(copy.copy(twice.tensor.chunks[0]))
    cases.add("the same chunk twice", twice.write(), TWICE)
    below = Folder(chunks_of([(0, [1, 2]), (2, [3, 4])]))
    below.tensor.chunks[0] = ChunkStorageMetadata(torch.Size([-1]), torch.Size([2]))
    below.places[MetadataIndex("w", torch.Size([-1]))] = below.places.pop(
        MetadataIndex("w", torch.Size([0])))
    cases.add("a chunk that begins below 0", below.write(), STRAY)
    flat = Folder()
    flat.tensor.chunks[0] = ChunkStorageMetadata(torch.Size([0, 0]), torch.Size([2, 1]))
    cases.add("a chunk of another number of dimensions", flat.write())
    square = [((0, 0), (2, 1), saved(floats(1, 3).view(2, 1))),
              ((0, 1), (2, 1), saved(floats(2, 4).view(2, 1)))]
    cases.add("columns", Folder(square, shape=(2, 2)).write(), shape=(2, 2))
    cases.add("columns, one missing", Folder(square[:1], shape=(2, 2)).write(), HOLE, shape=(2, 2))
    cases.add("no dimension", Folder([((), (), saved(torch.tensor(1.0)))], shape=()).write(), shape=())
    cases.add("no element", Folder([((0,), (0,), saved(floats()))], shape=(0,)).write(), shape=(0,))
    cases.add("no element and no chunk", Folder([], shape=(0,)).write(), shape=(0,))


def places(cases):
    def changed(what, why=None, offset=0, **fields):
        folder = Folder()
        for name, value in fields.items():
            setattr(folder.place(offset), name, value)
        cases.add(what, folder.write(), why)

    length = Folder().place().length
    changed("a file that is not there", relative_path="__1_0.distcp")
    changed("a file with no name", relative_path="")
    changed("a file in a folder that is not there", relative_path="nobody/" + FILE)
    changed("a file by a path with a dot", DOTS, relative_path="./" + FILE)
    changed("a file whose name is no text", relative_path=7)
    changed("a place behind the file's end", offset=2, length=length + 1 << 20)
    changed("a place below 0", offset=2, **{"length": -1})
    changed("a place that is cut", length=length - 1)
    changed("a place that is longer", STRAY, length=length + 1)
    changed("a length that is no number", length="9")
    changed("a transform that nobody has", transform_descriptors=["nobody"])
    changed("no transforms", transform_descriptors=[])
    for what, change in (("begins a byte later", 1), ("begins beyond", 1 << 40), ("begins below 0", -1)):
        folder = Folder()
        folder.place(2).offset += change if change > 0 else -(1 << 20)
        cases.add("an item that " + what, folder.write())
    above = Folder()
    for place in above.places.values():
        place.relative_path = "../" + FILE
    files = above.write()
    cases.add("files in the folder above", {FILE: files[FILE], "inner/.metadata": files[".metadata"]},
              OUTSIDE, inner="inner")
    absolute = Folder()
    for place in absolute.places.values():
        place.relative_path = f"{ABSOLUTE}/{FILE}"
    os.mkdir(ABSOLUTE)
    try:
        with open(f"{ABSOLUTE}/{FILE}", "wb") as file:
            file.write(absolute.files[FILE])
        cases.add("files by an absolute path", absolute.write(), OUTSIDE)
    finally:
        os.remove(f"{ABSOLUTE}/{FILE}")
        os.rmdir(ABSOLUTE)
    gone = Folder()
    del gone.places[MetadataIndex("w", torch.Size([2]))]
    cases.add("a chunk without a place", gone.write())
    old = Folder()
    del old.place(0).__dict__["transform_descriptors"]
    cases.add("a place of a version without transforms", old.write())
    swapped = Folder()
    a, b = swapped.place(0), swapped.place(2)
    a.offset, b.offset = b.offset, a.offset
    cases.add("two places exchanged", swapped.write())
    same = Folder()
    same.place(2).offset = same.place(0).offset
    cases.add("one item for two chunks", same.write())
    more = Folder()
    more.places[MetadataIndex("x", torch.Size([0]))] = more.place(0)
    cases.add("a place of nobody's", more.write())


def items(cases):
    def first(what, item, why=None):
        cases.add(what, Folder([((0,), (2,), item), ((2,), (2,), saved(floats(3, 4)))]).write(), why)

    first("an item of another dtype", saved(torch.tensor([1.0, 2.0], dtype=torch.float64)), STRAY)
    first("an item of integers", saved(torch.tensor([1, 2])), STRAY)
    first("an item of a larger shape", saved(floats(1, 2, 9)), STRAY)
    first("an item of a smaller shape", saved(floats(1)))
    first("an item of other dimensions", saved(floats(1, 2).view(2, 1)))
    first("an item that is a view", saved(floats(9, 1, 2, 9)[1:3]))
    first("an item that is not contiguous", saved(floats(1, 9, 2, 9)[::2]))
    first("an item that is one element, expanded", saved(floats(1).expand(2)))
    first("an item that is a parameter", saved(torch.nn.Parameter(floats(1, 2))), PARAMETER)
    first("an item that is a number", saved(1.0))
    first("an item that is a list of a tensor", saved([floats(1, 2)]))
    first("an item that is no zip", b"no zip at all")
    first("an empty item", b"")
    # It names a storage by its address in memory.
    older = saved(floats(1, 2), _use_new_zipfile_serialization=False)
    first("an item in torch.save's older form",
          re.sub(rb"\d{8,}", lambda number: b"1" * len(number[0]), older), LEGACY)
    first("an item that would run a function", saved(Runs(os.getpid, ())))
    cut = saved(floats(1, 2))
    first("an item that is cut", cut[:len(cut) // 2])
    short = Folder()
    short.files[FILE] = short.files[FILE][:-100]
    cases.add("a file that is cut", short.write())
    empty = Folder()
    empty.files[FILE] = b""
    cases.add("a file that is empty", empty.write())
    gone = Folder()
    del gone.files[FILE]
    cases.add("no file", gone.write())
    longer = Folder()
    longer.files[FILE] += bytes(100)
    cases.add("a file that goes on", longer.write())


def entries(cases):
    def entry(what, name, value, why=None):
        folder = Folder()
        folder.metadata.state_dict_metadata[name] = value
        cases.add(what, folder.write(), why)

    entry("an object beside it, without a place", "x", BytesStorageMetadata())
    entry("a tensor beside it, without a place", "x", Folder().tensor, STRAY)
    entry("something else beside it", "x", 7, STRUCTURE)
    entry("None beside it", "x", None, STRUCTURE)
    entry("a name that is no text", 7, BytesStorageMetadata(), STRUCTURE)
    entry("None in its place", "w", None)
    entry("an object in its place", "w", BytesStorageMetadata())

    for what, size, why in (("a size of more", [5], None), ("a size of less", [3], None),
                            ("a size of other dimensions", [2, 2], None)):
        folder = Folder()
        folder.tensor.size = torch.Size(size)
        cases.add(what, folder.write(), why)
    for what, properties, why in (
            ("another dtype than its items'", TensorProperties(dtype=torch.float64), STRAY),
            ("a dtype of integers", TensorProperties(dtype=torch.int64), STRAY),
            ("a dtype that has no elements here", TensorProperties(dtype=torch.quint8), STRUCTURE),
            ("no properties", None, STRUCTURE),
            ("pinned memory and a gradient",
             TensorProperties(dtype=torch.float32, requires_grad=True, pin_memory=True), None)):
        folder = Folder()
        folder.tensor.properties = properties
        cases.add(what, folder.write(), why)
    for field in ("properties", "size", "chunks"):
        folder = Folder()
        del folder.tensor.__dict__[field]
        cases.add("a tensor without " + field, folder.write(), STRUCTURE if field == "properties" else None)


def metadata(cases):
    def changed(what, why=None, **fields):
        folder = Folder()
        for name, value in fields.items():
            setattr(folder.metadata, name, value)
        cases.add(what, folder.write(), why)

    changed("no planner data", planner_data=None)
    changed("planner data of another form", planner_data=[1, "x", {"y": (2.5, True)}])
    changed("no storage meta", storage_meta=None)
    changed("no version", version=None)
    changed("a later version", version="2.0.0")
    changed("a version that is no text", version=7)
    changed("a field more", extra="x")
    changed("no storage data", storage_data=None)
    changed("storage data of another form", storage_data=[])
    changed("no tensors", state_dict_metadata=None)
    changed("tensors of another form", state_dict_metadata=[])
    for field, why in (("planner_data", None), ("storage_meta", None), ("version", None),
                       ("storage_data", None), ("state_dict_metadata", None)):
        folder = Folder()
        del folder.metadata.__dict__[field]
        cases.add("without the field " + field, folder.write(), why)
    changed("planner data that runs a function", EXECUTES, planner_data=Runs(os.getpid, ()))
    changed("planner data that evaluates a text", EXECUTES, planner_data=Runs(eval, ("1",)))
    changed("planner data of a set", PLAIN, planner_data={"x": {1, 2}})
    changed("planner data with a number of many bits", PLAIN, planner_data={"x": 1 << 100})
    changed("a checkpoint's name that is a path",
            storage_meta=StorageMeta(checkpoint_id=tempfile.gettempdir(), save_id="save"))


def pickles(cases):
    for protocol in range(6):
        cases.add(f"protocol {protocol}", Folder().write(protocol=protocol),
                  OLD_PICKLE if protocol < 2 else None)
    whole = pickle.dumps(Folder().metadata)
    for what, pickled, why in (
            ("nothing", b"", None),
            ("half of it", whole[:len(whole) // 2], None),
            ("all but the last byte", whole[:-1], None),
            ("something behind it", whole + b"x", STRAY),
            ("another object", pickle.dumps({"w": 1}), None),
            ("text", b"no pickle", None),
            ("a function that it runs and gives", pickle.dumps(Runs(copy.copy, (Folder().metadata,))),
             EXECUTES)):
        cases.add("metadata: " + what, Folder().write(whole if pickled is None else pickled), why)
    gone = Folder()
    gone.write()
    del gone.files[".metadata"]
    cases.add("no metadata", gone.files)


def main():
    torch.set_num_threads(1)
    cases = Cases()
    for fill in (chunks, places, items, entries, metadata, pickles):
        fill(cases)
    contents = ",\n".join("  " + json.dumps(text) for text in cases.contents)
    lines = ",\n".join("  " + json.dumps(row) for row in cases.rows)
    with open(sys.argv[1], "w", encoding="ascii") as out:
        version = torch.__version__.split("+")[0]
        out.write('{\n "torch": "%s",\n "contents": [\n%s\n ],\n "cases": [\n%s\n ]\n}\n' %
                  (version, contents, lines))


if __name__ == "__main__":
    main()
