// Makes the checkpoint of the parts that its ranks wrote, off line: no server is asked.
//
//   tessera consolidate PART_FOLDER... --out FOLDER
#ifndef TESSERA_CLIENT_CLI_CONSOLIDATE_COMMAND_H_
#define TESSERA_CLIENT_CLI_CONSOLIDATE_COMMAND_H_

#include "client/cli/command.h"

namespace tessera::cli {

// Errors: as Consolidate (checkpoint/parts/consolidate.h).
void RegisterConsolidateCommand(CLI::App* app, RunCommand* selected);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_CONSOLIDATE_COMMAND_H_
