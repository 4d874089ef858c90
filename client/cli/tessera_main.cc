// The `tessera` command.
#include <unistd.h>

#include <iostream>
#include <string>
#include <vector>

#include "client/cli/channel.h"
#include "client/cli/cli.h"

int main(int argc, char** argv) {
  tessera::cli::SilenceGrpcLog();
  const tessera::cli::Console console = {&std::cout, &std::cerr, isatty(STDOUT_FILENO) == 1};
  return tessera::cli::RunCli(std::vector<std::string>(argv + 1, argv + argc), console);
}
