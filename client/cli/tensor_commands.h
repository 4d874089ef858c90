// Tensors on disk, looked at off line: no server is asked. PATH is a model of whatever form, or a
// checkpoint (checkpoint/safetensors/stored_tensors.h). With --job, those of a job that trains, which a
// coordinator is asked for.
//
//   tessera ls PATH             names, dtypes, shapes, bytes
//   tessera ls --job JOB
//   tessera diff A B            what differs, tensor by tensor, to the bit; two NaN are equal
//   tessera diff --job JOB B    of the job's parameters, as one step left them
//
// --match PATTERN takes only some of the tensors, --json is for programs.
#ifndef TESSERA_CLIENT_CLI_TENSOR_COMMANDS_H_
#define TESSERA_CLIENT_CLI_TENSOR_COMMANDS_H_

#include "client/cli/command.h"

namespace tessera::cli {

// Errors of both: NotFound  nothing at a path, or no tensor whose name matches; InvalidArgument  it
//                 is not a model; DataLoss  it is damaged. With --job: as SaveLiveState.
void RegisterLsCommand(CLI::App* app, RunCommand* selected);
// Errors: FailedPrecondition  they differ; how, is said before.
void RegisterDiffCommand(CLI::App* app, RunCommand* selected);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_TENSOR_COMMANDS_H_
