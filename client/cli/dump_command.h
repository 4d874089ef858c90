// `tessera dump`: everything about one job (from the coordinator), or the flight records of its
// ranks (from their worker).
#ifndef TESSERA_CLIENT_CLI_DUMP_COMMAND_H_
#define TESSERA_CLIENT_CLI_DUMP_COMMAND_H_

#include "client/cli/command.h"

namespace tessera::cli {

void RegisterDumpCommand(CLI::App* app, RunCommand* selected);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_DUMP_COMMAND_H_
