"""Fails unless each file named after the first holds its tensors: names, shapes, dtypes and bytes.

Run by tools/real-model. The files are read by the Python package safetensors.
"""

import sys

from safetensors.numpy import load_file


def main():
    expected = load_file(sys.argv[1])
    for path in sys.argv[2:]:
        found = load_file(path)
        if sorted(found) != sorted(expected):
            sys.exit(f"{path} has other tensors: {sorted(set(found) ^ set(expected))}")
        for name, tensor in expected.items():
            same = (found[name].dtype, found[name].shape, found[name].tobytes()) == \
                   (tensor.dtype, tensor.shape, tensor.tobytes())
            if not same:
                sys.exit(f"{path}: tensor '{name}' is another one")
        print(f"{path}: {len(found)} tensors, all the same to the bit")


if __name__ == "__main__":
    main()
