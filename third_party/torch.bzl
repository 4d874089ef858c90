"""How to compile against Debian's libtorch, whose C++ API has an include folder of its own."""

TORCH_COPTS = [
    "-isystem/usr/include/torch/csrc/api/include",
    "-w",
]
