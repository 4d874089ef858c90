// `tessera status`: how the jobs of a coordinator, or of one worker, are doing, rank by rank.
#ifndef TESSERA_CLIENT_CLI_STATUS_COMMAND_H_
#define TESSERA_CLIENT_CLI_STATUS_COMMAND_H_

#include "client/cli/command.h"

namespace tessera::cli {

void RegisterStatusCommand(CLI::App* app, RunCommand* selected);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_STATUS_COMMAND_H_
