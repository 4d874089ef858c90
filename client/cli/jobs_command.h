// `tessera jobs`: the coordinator's jobs, one a line; `tessera jobs delete NAME` deletes one.
#ifndef TESSERA_CLIENT_CLI_JOBS_COMMAND_H_
#define TESSERA_CLIENT_CLI_JOBS_COMMAND_H_

#include "client/cli/command.h"

namespace tessera::cli {

void RegisterJobsCommand(CLI::App* app, RunCommand* selected);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_JOBS_COMMAND_H_
