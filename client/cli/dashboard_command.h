// `tessera dashboard`: a page that shows what a cluster does, served until a signal ends it.
#ifndef TESSERA_CLIENT_CLI_DASHBOARD_COMMAND_H_
#define TESSERA_CLIENT_CLI_DASHBOARD_COMMAND_H_

#include "client/cli/command.h"

namespace tessera::cli {

void RegisterDashboardCommand(CLI::App* app, RunCommand* selected);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_DASHBOARD_COMMAND_H_
