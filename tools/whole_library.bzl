"""Libraries of which a shared library takes every object.

    load("//tools:whole_library.bzl", "whole_library")
    whole_library(name = "whole", deps = ["//client:tessera"])
    cc_binary(name = "libtessera_cpp.so", linkshared = True, deps = [":whole"])

A linker takes from an archive the objects that something refers to. Nothing refers to those that
programs will call, so here each archive of `deps` and of what they depend on is taken whole.
"""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _whole(ctx, features, toolchain, library):
    archive = library.pic_static_library or library.static_library
    if not archive:
        return library
    return cc_common.create_library_to_link(
        actions = ctx.actions,
        feature_configuration = features,
        cc_toolchain = toolchain,
        pic_static_library = archive,
        alwayslink = True,
    )

def _whole_library_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(ctx = ctx, cc_toolchain = toolchain)
    all_of_deps = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    inputs = [
        cc_common.create_linker_input(
            owner = input.owner,
            libraries = depset([_whole(ctx, features, toolchain, library) for library in input.libraries]),
            user_link_flags = depset(input.user_link_flags),
            additional_inputs = depset(input.additional_inputs),
        )
        for input in all_of_deps.linking_context.linker_inputs.to_list()
    ]
    return [CcInfo(
        compilation_context = all_of_deps.compilation_context,
        linking_context = cc_common.create_linking_context(linker_inputs = depset(inputs)),
    )]

whole_library = rule(
    implementation = _whole_library_impl,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo], mandatory = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
