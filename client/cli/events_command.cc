#include "client/cli/events_command.h"

#include <cstdint>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "client/cli/ending_signals.h"
#include "client/cli/endpoint_flags.h"
#include "client/cli/event_view.h"
#include "client/cli/jobs_client.h"
#include "client/cli/text_table.h"

namespace tessera::cli {
namespace {

struct Flags {
  EndpointFlags endpoint;
  std::string job_id;  // Empty: of all jobs and workers.
  int64_t after = 0;
  bool follow = false;
  bool json = false;
};

// Prints events once each, in their order.
class EventPrinter {
 public:
  EventPrinter(const Flags& flags, JobsClient* client, const Console& console)
      : json_(flags.json), client_(*client), console_(console) {
    request_.set_job_id(flags.job_id);
    request_.set_after_number(flags.after);
  }

  // Those that there are by now.
  // Errors: as JobsClient; Unavailable  the output cannot be written
  //                        DataLoss     the coordinator's numbers do not rise
  absl::Status PrintNew() {
    while (true) {
      ASSIGN_OR_RETURN(const v1::ListEventsResponse page, client_.ListEvents(request_));
      if (request_.after_number() > 0 && page.last_number() < request_.after_number()) {
        Note("the coordinator has started again, and numbers its events from 1");
        request_.set_after_number(0);
        continue;
      }
      if (request_.after_number() > 0 && page.first_number() > request_.after_number() + 1) {
        Note(absl::StrCat("events ", request_.after_number() + 1, " to ", page.first_number() - 1,
                          " are not kept any more"));
      }
      for (const v1::Event& event : page.events()) {
        if (event.number() <= request_.after_number())
          return absl::DataLossError("the coordinator's events are not in their order");
        request_.set_after_number(event.number());
        *console_.out << (json_ ? EventJson(event) : EventLine(event)) << "\n";
        has_printed_ = true;
      }
      console_.out->flush();
      if (!console_.out->good()) return absl::UnavailableError("cannot write the output");
      // A page has only so many events: all are there once one is empty.
      if (!page.events().empty()) continue;
      // Past other jobs' events too, or those that are dropped would be noted as missing here.
      request_.set_after_number(page.last_number());
      return absl::OkStatus();
    }
  }

  bool has_printed() const { return has_printed_; }
  // To the errors, so that the output has nothing but events.
  void Note(const std::string& text) {
    *console_.err << "tessera: " << Printable(text) << "\n" << std::flush;
  }

 private:
  const bool json_;
  JobsClient& client_;
  const Console& console_;
  v1::ListEventsRequest request_;
  bool has_printed_ = false;
};

absl::Status Run(const Flags& flags, const Console& console) {
  std::unique_ptr<EndingSignals> signals;
  if (flags.follow) signals = std::make_unique<EndingSignals>();  // Before gRPC starts threads.
  ASSIGN_OR_RETURN(const auto client, JobsClient::Create(flags.endpoint.Coordinator()));
  EventPrinter printer(flags, client.get(), console);
  absl::Status status = printer.PrintNew();
  if (!status.ok()) return status;
  if (!flags.follow) {
    if (!printer.has_printed() && !flags.json) *console.out << "no events\n";
    return status;
  }
  while (signals->Wait(absl::Seconds(1))) {
    const bool was_ok = status.ok();
    status = printer.PrintNew();
    if (!console.out->good()) return status;
    // Once, and asked again: a coordinator may come back.
    if (!status.ok() && was_ok) printer.Note(status.ToString());
  }
  return absl::OkStatus();
}

}  // namespace

void RegisterEventsCommand(CLI::App* app, RunCommand* selected) {
  CLI::App* command = app->add_subcommand(
      "events", "list what happened to jobs, ranks and workers since the coordinator started");
  auto flags = std::make_shared<Flags>();
  flags->endpoint.AddCoordinator(command);
  flags->endpoint.AddTimeout(command);
  command->add_option("--job", flags->job_id, "only the events of this job");
  command->add_option("--after", flags->after, "only events with a larger number than this")
      ->check(WholeNumber(0, INT64_MAX));
  command->add_flag("--follow", flags->follow, "ask again each second, until interrupted");
  command->add_flag("--json", flags->json, "print one JSON object a line");
  command->callback(
      [flags, selected] { *selected = [flags](const Console& c) { return Run(*flags, c); }; });
}

}  // namespace tessera::cli
