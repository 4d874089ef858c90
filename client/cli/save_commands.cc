#include "client/cli/save_commands.h"

#include <memory>
#include <random>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "checkpoint/storage/storage_path.h"
#include "client/cli/endpoint_flags.h"
#include "client/cli/save_view.h"
#include "client/cli/saves_client.h"
#include "job/save_spec_codec.h"

namespace tessera::cli {
namespace {

constexpr absl::Duration kLookAgain = absl::Milliseconds(100);

struct Flags {
  EndpointFlags endpoint;
  std::string job, deadline;
  SaveSpec spec;
  int64_t cancel = 0;
  bool in_foreground = false, no_overwrite = false, no_wait = false, json = false;
};

std::string NewRequestId() {
  std::random_device random;
  std::string id = "cli-";
  for (int i = 0; i < 4; ++i) absl::StrAppend(&id, absl::Hex(random(), absl::kZeroPad8));
  return id;
}

std::string CheckDeadline(const std::string& text) {
  absl::Duration deadline;
  if (!absl::ParseDuration(text, &deadline) || deadline < absl::Milliseconds(1))
    return absl::StrCat("'", text, "' is not a time like 90s or 2h");
  return deadline <= absl::Hours(24 * 365) ? "" : absl::StrCat("'", text, "' is over a year");
}

v1::RequestSaveRequest RequestOf(const Flags& flags) {
  v1::RequestSaveRequest request;
  // New for each command, because two commands are two saves.
  request.set_request_id(NewRequestId());
  request.set_job_id(flags.job);
  SaveSpec spec = flags.spec;
  // The coordinator refuses a path that ends with a slash.
  spec.path = WithoutSlashes(std::move(spec.path));
  spec.options.in_background = !flags.in_foreground;
  spec.options.overwrite = !flags.no_overwrite;
  *request.mutable_spec() = EncodeSaveSpec(spec);
  absl::Duration deadline;
  if (absl::ParseDuration(flags.deadline, &deadline))
    request.set_expires_in_ms(absl::ToInt64Milliseconds(deadline));
  return request;
}

// Until it has ended. A coordinator that is away meanwhile is waited for: it knows it afterwards.
absl::StatusOr<v1::Save> Await(SavesClient* client, v1::Save save, const Flags& flags,
                               const Console& console) {
  std::string told;
  while (save.state() != v1::SAVE_STATE_ENDED) {
    const std::string line = SaveLine(save);
    // Only if a person looks, and to stderr, so that the output is the result alone.
    if (line != told && console.out_is_terminal && !flags.json) *console.err << line << std::endl;
    told = line;
    absl::SleepFor(kLookAgain);
    absl::StatusOr<v1::Save> now = client->Get(flags.job, save.number());
    if (now.ok()) {
      save = *std::move(now);
    } else if (!absl::IsUnavailable(now.status()) && !absl::IsDeadlineExceeded(now.status()) &&
               !absl::IsCancelled(now.status())) {  // A coordinator that ends cancels its calls.
      return Annotate(now.status(), absl::StrCat("save ", save.number()));
    }
  }
  return save;
}

absl::Status RunSave(const Flags& flags, const Console& console) {
  ASSIGN_OR_RETURN(const auto client, SavesClient::Create(flags.endpoint.Coordinator()));
  ASSIGN_OR_RETURN(v1::Save save, client->Request(RequestOf(flags)));
  if (!flags.no_wait) {
    ASSIGN_OR_RETURN(save, Await(client.get(), std::move(save), flags, console));
  }
  const bool failed = save.state() == v1::SAVE_STATE_ENDED && save.code() != 0;
  if (flags.json) {
    *console.out << SaveJson(save);
  } else if (!failed) {
    *console.out << SaveLine(save) << "\n";
  }
  return failed ? Annotate(OutcomeOf(save), absl::StrCat("save ", save.number()))
                : absl::OkStatus();
}

absl::Status RunSaves(const Flags& flags, const Console& console) {
  if (flags.cancel == 0)
    return ListSaves(flags.endpoint.Coordinator(), flags.job, /*ended=*/false, flags.json, console);
  ASSIGN_OR_RETURN(const auto client, SavesClient::Create(flags.endpoint.Coordinator()));
  ASSIGN_OR_RETURN(const v1::Save save, client->Cancel(flags.job, flags.cancel));
  if (flags.json) {
    *console.out << SaveJson(save);
  } else {
    *console.out << SaveLine(save) << "\n";
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ListSaves(const Endpoint& coordinator, const std::string& job_id, bool ended,
                       bool json, const Console& console) {
  ASSIGN_OR_RETURN(const auto client, SavesClient::Create(coordinator));
  ASSIGN_OR_RETURN(const v1::ListCheckpointsResponse saves, client->List(job_id));
  if (json) {
    *console.out << SavesJson(job_id, saves, ended);
  } else {
    *console.out << (ended ? EndedTable(saves) : PendingTable(saves));
  }
  return absl::OkStatus();
}

void RegisterSaveCommand(CLI::App* app, RunCommand* selected) {
  auto flags = std::make_shared<Flags>();
  SaveOptions* const options = &flags->spec.options;
  CLI::App* command =
      app->add_subcommand("save", "has the trainers of a job save a checkpoint at their next step");
  command->add_option("--job", flags->job, "the job's id")->required();
  command->add_option("--to", flags->spec.path, "absolute path on storage that all workers share")
      ->required();
  command->add_option("--keep-newest", options->keep_newest,
                      "keep this many of the job's checkpoints in that folder");
  command->add_option("--max-file-bytes", options->max_file_bytes,
                      "split the model into files of this size");
  command->add_flag("--in-parts", options->in_parts,
                    "each rank writes its own part, for `consolidate`");
  command->add_flag("--with-replicas", options->with_replicas,
                    "with --in-parts: write replicas too");
  command->add_flag("--foreground", flags->in_foreground,
                    "training waits for the disk, and needs no memory for a copy");
  command->add_flag("--no-overwrite", flags->no_overwrite,
                    "refuse to replace an existing checkpoint");
  command
      ->add_option("--deadline", flags->deadline,
                   "withdraw the request if no step took it within this time, such as 90s")
      ->check(CheckDeadline);
  CLI::Option* waits = command->add_flag("--wait", "return once it has ended (the default)");
  command->add_flag("--no-wait", flags->no_wait, "return once the request is recorded")
      ->excludes(waits);
  command->add_flag("--json", flags->json, "print JSON");
  flags->endpoint.AddCoordinator(command);
  flags->endpoint.AddTimeout(command);
  command->callback([flags, selected] {
    *selected = [flags](const Console& console) { return RunSave(*flags, console); };
  });
}

void RegisterSavesCommand(CLI::App* app, RunCommand* selected) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app->add_subcommand(
      "saves", "list requested checkpoints that are not complete yet, or cancel one");
  command->add_option("--job", flags->job, "the job's id")->required();
  command->add_option("--cancel", flags->cancel, "cancel the request with this number")
      ->check(CLI::PositiveNumber);
  command->add_flag("--json", flags->json, "print JSON");
  flags->endpoint.AddCoordinator(command);
  flags->endpoint.AddTimeout(command);
  command->callback([flags, selected] {
    *selected = [flags](const Console& console) { return RunSaves(*flags, console); };
  });
}

}  // namespace tessera::cli
