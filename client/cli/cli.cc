#include "client/cli/cli.h"

#include <algorithm>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/cli/layout_command.h"

namespace tessera::cli {
namespace {

// "NOT_FOUND: no such job" on one line, whatever a server wrote into its message.
std::string OneLine(const absl::Status& status) {
  return absl::StrReplaceAll(
      absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message()),
      {{"\n", " "}, {"\r", " "}, {"\x1b", "?"}});
}

int Report(const absl::Status& status, const Console& console) {
  console.out->flush();
  if (status.ok() && console.out->good()) return kExitOk;
  *console.err << "tessera: "
               << (status.ok() ? std::string("cannot write the output") : OneLine(status)) << "\n";
  return kExitFailed;
}

}  // namespace

int RunCli(const std::vector<std::string>& args, const Console& console) {
  CLI::App app("Looks into Tessera: layouts, jobs, ranks.", "tessera");
  app.require_subcommand(1);
  RunCommand selected;
  RegisterLayoutCommand(&app, &selected);
  try {
    std::vector<std::string> reversed(args.rbegin(), args.rend());
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    const bool is_help = app.exit(error, *console.out, *console.err) == 0;
    return is_help ? kExitOk : kExitUsage;
  }
  return Report(selected(console), console);
}

}  // namespace tessera::cli
