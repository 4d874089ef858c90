// `tessera workers`: the workers that a coordinator knows, and since when it has heard of each.
#ifndef TESSERA_CLIENT_CLI_WORKERS_COMMAND_H_
#define TESSERA_CLIENT_CLI_WORKERS_COMMAND_H_

#include "client/cli/command.h"

namespace tessera::cli {

void RegisterWorkersCommand(CLI::App* app, RunCommand* selected);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_WORKERS_COMMAND_H_
