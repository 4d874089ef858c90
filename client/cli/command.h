// What every subcommand of `tessera` is made of: flags that it adds to the parser and one function
// that runs when the command line named it.
//
// A command registers itself with Register...Command(app, selected) in a file of its own; the
// parser sets *selected when its subcommand was given. Plain values; thread-compatible.
#ifndef TESSERA_CLIENT_CLI_COMMAND_H_
#define TESSERA_CLIENT_CLI_COMMAND_H_

#include <functional>
#include <ostream>

#include "absl/status/status.h"

namespace CLI {
class App;
}  // namespace CLI

namespace tessera::cli {

// Where a command writes. The streams outlive it.
struct Console {
  std::ostream* out = nullptr;
  std::ostream* err = nullptr;
  bool out_is_terminal = false;
};

// An error becomes one line on `err` and exit code 1.
using RunCommand = std::function<absl::Status(const Console&)>;

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_COMMAND_H_
