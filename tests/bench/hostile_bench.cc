// The cost of clients that take all they can get, for a coordinator and for a trainer.
//
//   bazel run //tests/bench:hostile_bench -- --of-each 112 --seconds 60
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "tests/testing/beset_coordinator.h"

namespace tessera::testing_support {
namespace {

constexpr const char* kNames[kNumHostilities] = {"say nothing",
                                                 "send 60 MiB",
                                                 "send a little and no more",
                                                 "send without end",
                                                 "watch a job",
                                                 "wait for a hand-over",
                                                 "do not read 16 MiB",
                                                 "do not read their socket",
                                                 "create jobs of 16 MiB",
                                                 "reset their calls"};

struct Flags {
  int of_each = 112;       // Clients of each kind; 0: none but the trainer.
  std::vector<int> kinds;  // Only these; empty: all.
  int seconds = 60;
  std::vector<std::string> coordinator;
};

void Print(const char* what, std::vector<absl::Duration> took) {
  std::sort(took.begin(), took.end());
  const auto at = [&](double part) {
    return absl::ToDoubleMilliseconds(took[static_cast<size_t>(part * (took.size() - 1))]);
  };
  printf("%s: %zu calls, ms: median %.2f, p99 %.2f, longest %.2f\n", what, took.size(), at(0.5),
         at(0.99), at(1));
}

absl::Status Measure(const Flags& flags, const std::string& folder) {
  ASSIGN_OR_RETURN(const auto coordinator, BesetCoordinator::Start(folder, flags.coordinator));
  const auto train = [&](absl::Duration time,
                         int* threads) -> absl::StatusOr<std::vector<absl::Duration>> {
    std::vector<absl::Duration> took;
    for (const absl::Time end = SteadyNow() + time; SteadyNow() < end;) {
      ASSIGN_OR_RETURN(const std::vector<absl::Duration> more, coordinator->Train());
      took.insert(took.end(), more.begin(), more.end());
      *threads = std::max(*threads, coordinator->NumThreads());
    }
    return took;
  };
  int threads = 0;
  ASSIGN_OR_RETURN(const auto alone, train(absl::Seconds(5), &threads));
  Print("the trainer alone", alone);
  printf("  %d threads, %.0f MiB\n", threads, coordinator->PeakResidentBytes() / 1048576.0);
  if (flags.of_each == 0) return absl::OkStatus();
  std::array<int, kNumHostilities> clients = {};
  if (flags.kinds.empty()) clients.fill(flags.of_each);
  for (const int kind : flags.kinds) clients.at(kind) = flags.of_each;
  RETURN_IF_ERROR(coordinator->Beset(clients));
  ASSIGN_OR_RETURN(const auto beset, train(absl::Seconds(flags.seconds), &threads));
  Print("the trainer beside them", beset);
  printf("  at most %d threads, %.0f MiB\n", threads, coordinator->PeakResidentBytes() / 1048576.0);
  for (size_t kind = 0; kind < kNumHostilities; ++kind) {
    const auto hostility = static_cast<Hostility>(kind);
    if (clients[kind] == 0) continue;
    printf("  %d that %s: %ld calls\n", flags.of_each, kNames[kind],
           static_cast<long>(coordinator->hostile().NumCalls(hostility)));
    for (const std::string& answer : coordinator->hostile().Answers(hostility))
      printf("    %.160s\n", answer.c_str());
  }
  printf("  %zu bytes of log\n", coordinator->Log().size());
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera::testing_support

int main(int argc, char** argv) {
  using tessera::testing_support::Flags;
  CLI::App app("A coordinator beside clients that take all they can get.", "hostile_bench");
  Flags flags;
  app.add_option("--of-each", flags.of_each, "clients of each kind")->capture_default_str();
  app.add_option("--kind", flags.kinds, "number of a kind, from 0; may be repeated [all]");
  app.add_option("--seconds", flags.seconds, "how long")->capture_default_str();
  app.add_option("--coordinator", flags.coordinator, "a flag of the coordinator; may be repeated");
  if (const auto ended = tessera::ParseCommandLine(&app, argc, argv)) return *ended;
  setvbuf(stdout, nullptr, _IOLBF, 0);
  std::string folder = "/tmp/tessera-hostile-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return 1;
  const absl::Status status = tessera::testing_support::Measure(flags, folder);
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  if (!status.ok()) fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
