"""What the package safetensors reads of what real_model wrote, beside the model that it was made of.

    compare.py MODEL OUT

OUT/world*.safetensors, saved, and OUT/live*.safetensors, read over gRPC, have the model's tensors:
names, shapes, dtypes and bytes. OUT/trained*.safetensors, saved a step later, have other values,
the same from every number of ranks but for rounding. Where PyTorch is installed it reads them too.
"""

import glob
import sys

import numpy as np
from safetensors.numpy import load_file

try:
    import torch
    from safetensors.torch import load_file as torch_load_file
except ImportError:
    torch = None

# Gradients of as many ranks are averaged in fp32; one update moves a parameter by 1e-3.
ROUNDING = 1e-6


def check_shape_of_it(path, found, expected):
    if sorted(found) != sorted(expected):
        sys.exit(f"{path} has other tensors: {sorted(set(found) ^ set(expected))}")
    for name, tensor in expected.items():
        if (found[name].dtype, found[name].shape) != (tensor.dtype, tensor.shape):
            sys.exit(f"{path}: tensor '{name}' is of another dtype or shape")


def check_same(path, expected):
    found = load_file(path)
    check_shape_of_it(path, found, expected)
    for name, tensor in expected.items():
        if found[name].tobytes() != tensor.tobytes():
            sys.exit(f"{path}: tensor '{name}' is another one")
    print(f"{path}: {len(found)} tensors, all the same to the bit")


def check_trained(path, expected, first):
    found = load_file(path)
    check_shape_of_it(path, found, expected)
    for name, tensor in expected.items():
        if not np.isfinite(found[name]).all():
            sys.exit(f"{path}: tensor '{name}' is not finite")
        if tensor.size and (found[name] == tensor).all():
            sys.exit(f"{path}: tensor '{name}' was not trained")
        if not np.allclose(found[name], first[name], rtol=ROUNDING, atol=ROUNDING):
            sys.exit(f"{path}: tensor '{name}' is not what other ranks made of it")
    print(f"{path}: {len(found)} tensors, trained alike")


def check_torch(path, expected):
    found = torch_load_file(path)
    for name, tensor in expected.items():
        if not torch.equal(found[name], torch.from_numpy(tensor)):
            sys.exit(f"{path}: PyTorch reads another tensor '{name}'")
    print(f"{path}: PyTorch {torch.__version__} reads it")


def files(out, kind):
    found = sorted(glob.glob(f"{out}/{kind}*.safetensors"))
    if not found:
        sys.exit(f"{out} has no {kind}*.safetensors")
    return found


def main():
    model, out = sys.argv[1:]
    expected = load_file(model)
    for path in files(out, "world") + files(out, "live"):
        check_same(path, expected)
    trained = files(out, "trained")
    for path in trained:
        check_trained(path, expected, load_file(trained[0]))
    if torch is None:
        print("PyTorch is not installed here: it read nothing")
        return
    for path in files(out, "world") + files(out, "live"):
        check_torch(path, expected)


if __name__ == "__main__":
    main()
