"""C++ from .proto files by the system's protoc and gRPC plugin."""

def tessera_proto_library(name, srcs, grpc = False, deps = [], visibility = None):
    """One C++ library of the messages (and services) in `srcs`, all of this package.

    `deps` are libraries of the messages that they import.
    """
    outs = []
    for src in srcs:
        stem = src[:-len(".proto")]
        outs += [stem + ".pb.h", stem + ".pb.cc"]
        if grpc:
            outs += [stem + ".grpc.pb.h", stem + ".grpc.pb.cc"]
    flags = "--cpp_out=$(GENDIR)"
    if grpc:
        flags += " --grpc_out=$(GENDIR) --plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin"
    native.genrule(
        name = name + "_gen",
        srcs = native.glob(["*.proto"]),
        outs = outs,
        cmd = "/usr/bin/protoc -I. %s %s" % (
            flags,
            " ".join(["proto/" + src for src in srcs]),
        ),
    )
    native.cc_library(
        name = name,
        srcs = [o for o in outs if o.endswith(".cc")],
        hdrs = [o for o in outs if o.endswith(".h")],
        copts = ["-O1", "-g0", "-w"],
        deps = deps + ["//third_party:grpc" if grpc else "//third_party:protobuf"],
        visibility = visibility,
    )
