// What the command lines of all programs have in common.
//
//   exit codes  0 done, also --help and --version; 1 it failed; 2 wrong usage
//   messages    "PROGRAM: what is wrong (see --help)", one line; PROGRAM is the app's name
//
// Thread-safe: nothing is kept.
#ifndef TESSERA_BASE_COMMAND_LINE_H_
#define TESSERA_BASE_COMMAND_LINE_H_

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace tessera {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

// Parses `args`, which do not include the program's name. Returns the exit code if the program must
// exit at once; nothing: continue. The app's callbacks have run then. An unknown option is reported
// first.
std::optional<int> ParseCommandLine(CLI::App* app, std::vector<std::string> args, std::ostream* out,
                                    std::ostream* err);
// The same for main, on standard output and error.
std::optional<int> ParseCommandLine(CLI::App* app, int argc, char** argv);

// Checks that an option is a whole number from `min` to `max`.
CLI::Validator WholeNumber(int64_t min, int64_t max);

}  // namespace tessera

#endif  // TESSERA_BASE_COMMAND_LINE_H_
