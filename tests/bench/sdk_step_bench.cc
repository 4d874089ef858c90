// G8 and G9 through the SDK: what Tessera itself costs a step, where the model costs nothing.
#include <unistd.h>

#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "tests/bench/bench_session.h"
#include "tests/bench/benchmarks.h"
#include "tests/bench/cluster_process.h"
#include "tests/bench/empty_grpc.h"
#include "tests/bench/team.h"

namespace tessera {
namespace bench {
namespace {

enum Series { kStep, kGrpc, kWindows };  // kWindows and those after it: by kUnits.

constexpr int kSteps = 300;
constexpr int kWindowSteps = 5;
constexpr int kGrpcCalls = 300;
constexpr int kGrpcServer = 1;  // The other rank trains.
constexpr int kUnits[] = {10, 100, 1000};

// Seconds of a step that does nothing but agree and commit.
double StepSeconds(Session* session) {
  const int64_t begin_ns = absl::GetCurrentTimeNanos();
  for (int step = 0; step < kSteps; ++step) TESSERA_CHECK(session->Step().ok());
  return 1e-9 * (absl::GetCurrentTimeNanos() - begin_ns) / kSteps;
}

// Seconds to open and close a unit, in steps that do so with every unit once.
double WindowSeconds(Session* session) {
  int64_t windows_ns = 0;
  const int num_units = session->num_units();
  for (int step = 0; step < kWindowSteps; ++step) {
    const int64_t begin_ns = absl::GetCurrentTimeNanos();
    for (int unit = 0; unit < num_units; ++unit) {
      TESSERA_CHECK(session->Unshard(unit).ok());
      TESSERA_CHECK(session->Reshard(unit).ok());
    }
    windows_ns += absl::GetCurrentTimeNanos() - begin_ns;
    TESSERA_CHECK(session->Step().ok());
  }
  return 1e-9 * windows_ns / kWindowSteps / num_units;
}

void Measure(TeamMember* member, const ClusterProcess& cluster, const std::string& socket) {
  std::unique_ptr<EmptyGrpcServer> server;
  if (member->rank() == kGrpcServer) server = std::make_unique<EmptyGrpcServer>(socket);
  member->Barrier();
  std::unique_ptr<EmptyGrpcClient> client;
  std::unique_ptr<Session> small;
  std::vector<std::unique_ptr<Session>> chains;
  if (member->rank() != kGrpcServer) {
    client = std::make_unique<EmptyGrpcClient>(socket);
    small = OpenSession(cluster, "small", EqualUnits(1, 16));
    for (const int units : kUnits)
      chains.push_back(OpenSession(cluster, absl::StrCat("chain", units), EqualUnits(units, 1024)));
  }
  while (member->NextRound()) {
    if (client != nullptr) {
      member->Note(kStep, StepSeconds(small.get()));
      member->Note(kGrpc, client->SecondsPerCall(kGrpcCalls));
      for (size_t i = 0; i < chains.size(); ++i)
        member->Note(kWindows + i, WindowSeconds(chains[i].get()));
    }
    member->Barrier();
  }
}

}  // namespace

absl::StatusOr<std::vector<Row>> BenchSdkStep(int rounds, const std::string& executor_binary) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ClusterProcess> cluster,
                   ClusterProcess::Start(4, executor_binary));
  TeamOptions options;
  options.size = 2;
  options.rounds = rounds;
  options.pin = false;
  options.helpers_cpu_ns = [&cluster] { return cluster->CpuNs(); };
  const std::string socket = absl::StrCat("/tmp/tessera_bench_", getpid(), ".sock");
  ASSIGN_OR_RETURN(const TeamResult result, RunTeam(options, [&](TeamMember* member) {
                     Measure(member, *cluster, socket);
                   }));
  std::vector<Row> rows;
  const auto micros = [&](const char* goal, const char* what, int series) {
    std::vector<double> values = result.series[series];
    for (double& value : values) value *= 1e6;
    rows.push_back(Row{goal, what, 1, QuartilesOf(values), "us", Better::kNeither, 0, 0,
                       result.loaded_rounds});
  };
  micros("G8", "Session::Step of an empty step", kStep);
  micros("G8", "empty gRPC unary call, Unix socket", kGrpc);
  rows.push_back(Row{"G8", "Session::Step / gRPC unary", 1,
                     RatioOf(result.series[kStep], result.series[kGrpc]), "ratio", Better::kLower,
                     1.0 / 20, 1.0 / 8, result.loaded_rounds});
  for (size_t i = 0; i < std::size(kUnits); ++i) {
    std::vector<double> windows = result.series[kWindows + i];
    for (double& value : windows) value *= 1e6;
    rows.push_back(Row{"G9", absl::StrCat("unshard and reshard of one unit of ", kUnits[i]), 1,
                       QuartilesOf(windows), "us", Better::kLower, 5, 10, result.loaded_rounds});
  }
  return rows;
}

}  // namespace bench
}  // namespace tessera
