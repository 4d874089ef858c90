"""How to compile against Debian's libtorch, whose C++ API has an include folder of its own.

What the adapter does itself is little beside what it has libtorch and the session do, so it is
compiled to be compiled fast.
"""

TORCH_COPTS = [
    "-isystem/usr/include/torch/csrc/api/include",
    "-O1",
]
