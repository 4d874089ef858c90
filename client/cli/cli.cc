#include "client/cli/cli.h"

#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/cli/dump_command.h"
#include "client/cli/jobs_command.h"
#include "client/cli/layout_command.h"
#include "client/cli/status_command.h"
#include "client/cli/text_table.h"
#include "client/cli/top_command.h"

namespace tessera::cli {
namespace {

// "NOT_FOUND: no such job" on one line, whatever a server wrote into its message.
std::string OneLine(const absl::Status& status) {
  return Printable(absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message()));
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
  RegisterDumpCommand(&app, &selected);
  RegisterJobsCommand(&app, &selected);
  RegisterLayoutCommand(&app, &selected);
  RegisterStatusCommand(&app, &selected);
  RegisterTopCommand(&app, &selected);
  try {
    std::vector<std::string> reversed(args.rbegin(), args.rend());
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) {
      *console.err << "tessera: " << Printable(error.what()) << " (see --help)\n";
      return kExitUsage;
    }
    app.exit(error, *console.out, *console.err);  // --help
    return Report(absl::OkStatus(), console);
  }
  return Report(selected(console), console);
}

}  // namespace tessera::cli
