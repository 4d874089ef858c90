// `tessera layout --spec FILE --world-size N`: how a model would be laid out, with no server.
//
// Without --compute-dtype each unit's alignment is counted in elements of the unit's own dtype.
#ifndef TESSERA_CLIENT_CLI_LAYOUT_COMMAND_H_
#define TESSERA_CLIENT_CLI_LAYOUT_COMMAND_H_

#include "client/cli/command.h"

namespace tessera::cli {

void RegisterLayoutCommand(CLI::App* app, RunCommand* selected);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_LAYOUT_COMMAND_H_
