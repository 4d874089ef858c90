"""Headers that gcc reads once and every source after it maps.

    load("//third_party:precompiled_header.bzl", "precompiled_header")
    precompiled_header(name = "torch_pch", headers = ["//client/include:tessera/torch/libtorch.h"], copts = TORCH_COPTS)

Makes <name>.h, which is `headers` one after the other, and <name>.h.gch beside it. Who depends on the target and
compiles with exactly the same flags and `-include third_party/<name>.h -Winvalid-pch` starts from
there. These name only headers of the system; sources include what they use all the same, and
clang's builds, which have no precompiled headers, see to it.
"""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _precompiled_header_impl(ctx):
    header = ctx.actions.declare_file(ctx.label.name + ".h")
    ctx.actions.run_shell(
        command = 'cat "${@:2}" >"$1"',
        arguments = [header.path] + [part.path for part in ctx.files.headers],
        inputs = ctx.files.headers,
        outputs = [header],
    )
    compiled = ctx.actions.declare_file(ctx.label.name + ".h.gch")
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts + ["-xc++-header"]
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        user_compile_flags = flags,
        source_file = header.path,
        output_file = compiled.path,
        use_pic = True,
    )
    environment = dict(ctx.configuration.default_shell_env)
    environment.update(cc_common.get_environment_variables(
        feature_configuration = features,
        action_name = CPP_COMPILE_ACTION_NAME,
        variables = variables,
    ))
    ctx.actions.run(
        executable = cc_common.get_tool_for_action(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
        ),
        arguments = cc_common.get_memory_inefficient_command_line(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
            variables = variables,
        ),
        env = environment,
        inputs = depset([header], transitive = [toolchain.all_files]),
        outputs = [compiled],
        mnemonic = "CppPrecompileHeader",
        progress_message = "Precompiling %s" % header.short_path,
    )
    context = cc_common.create_compilation_context(headers = depset([header, compiled]))
    return [CcInfo(compilation_context = context), DefaultInfo(files = depset([compiled]))]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "copts": attr.string_list(),
        "headers": attr.label_list(allow_files = True, mandatory = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
