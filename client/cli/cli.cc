#include "client/cli/cli.h"

#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/version.h"
#include "client/cli/certs_command.h"
#include "client/cli/checkpoint_commands.h"
#include "client/cli/consolidate_command.h"
#include "client/cli/dashboard_command.h"
#include "client/cli/dump_command.h"
#include "client/cli/events_command.h"
#include "client/cli/jobs_command.h"
#include "client/cli/layout_command.h"
#include "client/cli/live_commands.h"
#include "client/cli/put_command.h"
#include "client/cli/save_commands.h"
#include "client/cli/status_command.h"
#include "client/cli/tensor_commands.h"
#include "client/cli/text_table.h"
#include "client/cli/top_command.h"
#include "client/cli/workers_command.h"

namespace tessera::cli {
namespace {

// "NOT_FOUND: no such job" on one line, whatever a server wrote into its message.
std::string OneLine(const absl::Status& status) {
  return Printable(absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message()));
}

int Report(const absl::Status& status, const Console& console) {
  // Buffered output fails only when it is flushed.
  console.out->flush();
  if (status.ok() && console.out->good()) return kExitOk;
  *console.err << "tessera: "
               << (status.ok() ? std::string("cannot write the output") : OneLine(status)) << "\n";
  return kExitFailed;
}

// `help` and `help COMMAND` ask for what --help shows.
std::vector<std::string> HelpAsAFlag(std::vector<std::string> args) {
  if (args.empty() || args[0] != "help") return args;
  args.erase(args.begin());
  args.push_back("--help");
  return args;
}

}  // namespace

int RunCli(const std::vector<std::string>& args, const Console& console) {
  CLI::App app("Shows and controls Tessera's layouts, jobs, ranks and workers.", "tessera");
  app.require_subcommand(1);
  app.set_version_flag("--version", absl::StrCat("tessera ", kVersion));
  RunCommand selected;
  RegisterCertsCommand(&app, &selected);
  RegisterCheckpointsCommand(&app, &selected);
  RegisterConsolidateCommand(&app, &selected);
  RegisterDashboardCommand(&app, &selected);
  RegisterDiffCommand(&app, &selected);
  RegisterDumpCommand(&app, &selected);
  RegisterEventsCommand(&app, &selected);
  RegisterGetCommand(&app, &selected);
  RegisterJobsCommand(&app, &selected);
  RegisterLayoutCommand(&app, &selected);
  RegisterLsCommand(&app, &selected);
  RegisterPutCommand(&app, &selected);
  RegisterSaveCommand(&app, &selected);
  RegisterSavesCommand(&app, &selected);
  RegisterStatusCommand(&app, &selected);
  RegisterTopCommand(&app, &selected);
  RegisterVerifyCommand(&app, &selected);
  RegisterWorkersCommand(&app, &selected);
  const std::optional<int> ended =
      ParseCommandLine(&app, HelpAsAFlag(args), console.out, console.err);
  return ended.has_value() ? *ended : Report(selected(console), console);
}

}  // namespace tessera::cli
