"""Finds the CUDA toolkit and NCCL and makes @local_config_cuda of them, or of their absence.

    load("//third_party:cuda_configure.bzl", "cuda_configure")
    cuda_configure(name = "local_config_cuda")

TESSERA_CUDA_PATH, from the environment or by --repo_env, is the toolkit's folder; "none" builds
without CUDA whatever is installed. Unset: /usr/local/cuda where it is there. NCCL is looked for in
the toolkit's folder, then among the system's libraries.

What is found is looked at again when the variable changes and when Bazel's server starts. A folder
that was named and holds no toolkit is an error; nothing is ever downloaded.
"""

_DEFAULT_PATH = "/usr/local/cuda"
_LIBRARY_FOLDERS = ["lib64", "lib", "targets/x86_64-linux/lib", "lib/x86_64-linux-gnu"]

def _macro(text, name):
    """Returns the integer that a header defines `name` as, or 0."""
    for line in text.split("\n"):
        words = [word for word in line.replace("\t", " ").strip().split(" ") if word]
        if len(words) >= 3 and words[:2] == ["#define", name] and words[2].isdigit():
            return int(words[2])
    return 0

def _folder_of(ctx, root, library):
    """Returns the folder under `root` that holds `library`, or None."""
    for folder in _LIBRARY_FOLDERS:
        path = ctx.path(root + "/" + folder)
        if ctx.path(root + "/" + folder + "/" + library).exists:
            return path
    return None

def _find_cuda(ctx):
    """Returns struct(root, version, libraries, static), or None where CUDA is absent or off."""
    wanted = ctx.os.environ.get("TESSERA_CUDA_PATH", "")
    if wanted == "none":
        return None
    root = wanted or _DEFAULT_PATH
    if not root.startswith("/"):
        fail("TESSERA_CUDA_PATH: '%s' is neither an absolute path nor 'none'" % root)
    headers = [ctx.path(root + "/include/" + name) for name in ["cuda.h", "cuda_runtime_api.h"]]
    static = _folder_of(ctx, root, "libcudart_static.a")
    libraries = static or _folder_of(ctx, root, "libcudart.so")
    version = _macro(ctx.read(headers[0]), "CUDA_VERSION") if headers[0].exists else 0
    if version and headers[1].exists and libraries:
        return struct(root = root, version = version, libraries = libraries, static = static != None)
    if wanted:
        fail(("TESSERA_CUDA_PATH: '%s' is no CUDA toolkit: include/cuda.h with a CUDA_VERSION, " +
              "include/cuda_runtime_api.h or the cudart library is missing") % wanted)
    return None

def _find_nvcc(ctx, cuda):
    """Returns the path of the compiler for kernels, or ""."""
    nvcc = ctx.path(cuda.root + "/bin/nvcc") if cuda else None
    return str(nvcc) if nvcc and nvcc.exists else ""

def _find_nccl(ctx, cuda):
    """Returns struct(version, libraries), or None."""
    for root in [cuda.root, "/usr"] if cuda else []:
        header = ctx.path(root + "/include/nccl.h")
        libraries = _folder_of(ctx, root, "libnccl.so")
        version = _macro(ctx.read(header), "NCCL_VERSION_CODE") if header.exists else 0
        if version and libraries:
            return struct(version = version, libraries = libraries)
    return None

def _nccl_linkopts(cuda, nccl):
    # The system's own folders need no search path, and no binary should carry one of them.
    if not str(nccl.libraries).startswith(cuda.root):
        return ["-lnccl"]
    return ["-L%s" % nccl.libraries, "-lnccl", "-Wl,-rpath,%s" % nccl.libraries]

def _cudart_linkopts(cuda):
    if cuda.static:
        return ["-L%s" % cuda.libraries, "-l:libcudart_static.a", "-ldl", "-lrt", "-lpthread"]
    return ["-L%s" % cuda.libraries, "-lcudart", "-Wl,-rpath,%s" % cuda.libraries]

def _cuda_configure_impl(ctx):
    cuda = _find_cuda(ctx)
    nccl = _find_nccl(ctx, cuda)
    if cuda:
        ctx.symlink(cuda.root + "/include", "include")
    ctx.template("BUILD.bazel", ctx.attr._build_template, {
        "%{cudart_linkopts}": repr(_cudart_linkopts(cuda) if cuda else []),
        "%{nccl_linkopts}": repr(_nccl_linkopts(cuda, nccl) if nccl else []),
    })
    ctx.file("cuda.bzl", "\n".join([
        '"""What third_party/cuda_configure.bzl found on this machine."""',
        "",
        "CUDA_VERSION = %d" % (cuda.version if cuda else 0),
        "NCCL_VERSION_CODE = %d" % (nccl.version if nccl else 0),
        "NVCC = %s" % repr(_find_nvcc(ctx, cuda)),
        "",
        "def if_cuda(if_true, if_false = []):",
        "    return if_true if CUDA_VERSION else if_false",
        "",
        "def if_nccl(if_true, if_false = []):",
        "    return if_true if NCCL_VERSION_CODE else if_false",
        "",
    ]))

cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    attrs = {"_build_template": attr.label(default = "//third_party:cuda.BUILD.tpl")},
    environ = ["TESSERA_CUDA_PATH"],
    local = True,
    configure = True,
)
