// `tessera get JOB --out FILE.safetensors`: the parameters of a job, as one step left them, while
// it trains.
//
//   --include / --exclude PATTERN   only some of them; --optimizer: the optimizer's state too
//   --dtype bf16                    rounded on the way
//   --json                          what was written, for programs
#ifndef TESSERA_CLIENT_CLI_LIVE_COMMANDS_H_
#define TESSERA_CLIENT_CLI_LIVE_COMMANDS_H_

#include "client/cli/command.h"

namespace tessera::cli {

// Errors: as SaveLiveState; InvalidArgument  an unknown dtype.
void RegisterGetCommand(CLI::App* app, RunCommand* selected);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_LIVE_COMMANDS_H_
