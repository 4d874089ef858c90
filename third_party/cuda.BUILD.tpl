# Made by third_party/cuda_configure.bzl. Without CUDA these targets are there and empty.
package(default_visibility = ["//visibility:public"])

# What C++ sources include, not what nvcc needs besides. nccl.h lies here too, where NCCL came with
# the toolkit.
cc_library(
    name = "cuda_headers",
    hdrs = glob(
        [
            "include/*.h",
            "include/*.hpp",
            "include/crt/*",
            "include/nccl_device/**",
        ],
        allow_empty = True,
    ),
    includes = ["include"],
)

cc_library(
    name = "cudart",
    linkopts = %{cudart_linkopts},
    deps = [":cuda_headers"],
)

cc_library(
    name = "nccl",
    linkopts = %{nccl_linkopts},
    deps = [":cuda_headers"],
)
