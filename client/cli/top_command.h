// `tessera top`: a live view of all jobs and ranks. On a terminal it refreshes until Ctrl-C; in a
// pipe, or with --once, it prints one frame.
#ifndef TESSERA_CLIENT_CLI_TOP_COMMAND_H_
#define TESSERA_CLIENT_CLI_TOP_COMMAND_H_

#include "client/cli/command.h"

namespace tessera::cli {

void RegisterTopCommand(CLI::App* app, RunCommand* selected);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_TOP_COMMAND_H_
