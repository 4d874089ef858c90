// `tessera events`: what happened in the cluster, one line an event, as the coordinator remembers it.
#ifndef TESSERA_CLIENT_CLI_EVENTS_COMMAND_H_
#define TESSERA_CLIENT_CLI_EVENTS_COMMAND_H_

#include "client/cli/command.h"

namespace tessera::cli {

void RegisterEventsCommand(CLI::App* app, RunCommand* selected);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_EVENTS_COMMAND_H_
