// The `tessera` command without its main, so that tests run it in their own process.
#ifndef TESSERA_CLIENT_CLI_CLI_H_
#define TESSERA_CLIENT_CLI_CLI_H_

#include <string>
#include <vector>

#include "base/command_line.h"  // The exit codes.
#include "client/cli/command.h"

namespace tessera::cli {

// Runs `args` (without the program's name) and returns the exit code. Blocks until the command is
// done; never throws.
int RunCli(const std::vector<std::string>& args, const Console& console);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_CLI_H_
