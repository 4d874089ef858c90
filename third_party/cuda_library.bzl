"""Compiles kernels with nvcc, where there is one.

    load("//third_party:cuda_library.bzl", "cuda_library")
    cuda_library(name = "kernels", srcs = ["kernels.cu"], hdrs = [...], absent_srcs = ["absent.cc"])

A library of what nvcc makes of `srcs`: machine code for sm_80 and sm_90, and PTX for what comes
after. Products are not fused into sums, so that kernels round as the CPU's do. Where the build
found no nvcc it is a library of `absent_srcs`, which define the same functions.
"""

load("@local_config_cuda//:cuda.bzl", "NVCC")

_GENERATE = " ".join(["-gencode " + generate for generate in [
    "arch=compute_80,code=sm_80",
    "arch=compute_90,code=sm_90",
    "arch=compute_90,code=compute_90",
]])

# Not into /tmp: each sandbox has a space of process ids of its own, which nvcc names its files by.
_FLAGS = "-std=c++17 -O3 --fmad=false --objdir-as-tempdir -I. -Xcompiler -fPIC,-Wall"

def cuda_library(name, srcs, hdrs, absent_srcs, deps = [], **kwargs):
    objects = []
    for src in srcs if NVCC else []:
        object = src.replace(".cu", ".o")
        native.genrule(
            name = name + "_" + src.replace(".cu", ""),
            srcs = [src] + hdrs,
            outs = [object],
            cmd = "%s %s %s -c $(location %s) -o $@" % (NVCC, _FLAGS, _GENERATE, src),
        )
        objects.append(object)
    native.cc_library(
        name = name,
        srcs = objects if NVCC else absent_srcs,
        hdrs = [hdr for hdr in hdrs if hdr.endswith(".h")],
        linkstatic = True,
        deps = deps + (["//third_party:cuda"] if NVCC else []),
        **kwargs
    )
