// G8 and G9 through the SDK: what Tessera itself costs a step, where the model costs nothing.
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "client/cpp/session.h"
#include "tests/bench/benchmarks.h"
#include "tests/bench/cluster_process.h"
#include "tests/bench/empty_grpc.h"
#include "tests/bench/team.h"

namespace tessera {
namespace bench {
namespace {

enum Series { kStep, kWindows, kGrpc };

constexpr int kSteps = 300;
constexpr int kWindowSteps = 5;
constexpr int kGrpcCalls = 300;
constexpr int kGrpcServer = 1;  // The other rank trains.
constexpr int kUnits = 1000;

std::unique_ptr<Session> OpenSession(const ClusterProcess& cluster, const std::string& job,
                                     int num_units, int64_t unit_numel) {
  SessionOptions options;
  options.coordinator_address = cluster.coordinator_address();
  options.worker_address = cluster.worker_address();
  options.job_id = job;
  for (int unit = 0; unit < num_units; ++unit) {
    options.model.units.push_back(
        {absl::StrCat("unit", unit), {{absl::StrCat("w", unit), {unit_numel}, DType::kFp32}}});
  }
  auto session = Session::Open(options);
  TESSERA_CHECK(session.ok());
  TESSERA_CHECK((*session)
                    ->Initialize([](int, int, absl::Span<float> values) {
                      std::fill(values.begin(), values.end(), 1.0f);
                    })
                    .ok());
  return *std::move(session);
}

// Seconds of a step that does nothing but agree and commit.
double StepSeconds(Session* session) {
  const int64_t begin_ns = absl::GetCurrentTimeNanos();
  for (int step = 0; step < kSteps; ++step) TESSERA_CHECK(session->Step().ok());
  return 1e-9 * (absl::GetCurrentTimeNanos() - begin_ns) / kSteps;
}

// Seconds to open and close a unit, in steps that do so with every unit once.
double WindowSeconds(Session* session) {
  int64_t windows_ns = 0;
  for (int step = 0; step < kWindowSteps; ++step) {
    const int64_t begin_ns = absl::GetCurrentTimeNanos();
    for (int unit = 0; unit < kUnits; ++unit) {
      TESSERA_CHECK(session->Unshard(unit).ok());
      TESSERA_CHECK(session->Reshard(unit).ok());
    }
    windows_ns += absl::GetCurrentTimeNanos() - begin_ns;
    TESSERA_CHECK(session->Step().ok());
  }
  return 1e-9 * windows_ns / kWindowSteps / kUnits;
}

void Measure(TeamMember* member, const ClusterProcess& cluster, const std::string& socket) {
  std::unique_ptr<EmptyGrpcServer> server;
  if (member->rank() == kGrpcServer) server = std::make_unique<EmptyGrpcServer>(socket);
  member->Barrier();
  std::unique_ptr<EmptyGrpcClient> client;
  std::unique_ptr<Session> small, long_one;
  if (member->rank() != kGrpcServer) {
    client = std::make_unique<EmptyGrpcClient>(socket);
    small = OpenSession(cluster, "small", 1, 16);
    long_one = OpenSession(cluster, "long", kUnits, 1024);
  }
  while (member->NextRound()) {
    if (client != nullptr) {
      member->Note(kStep, StepSeconds(small.get()));
      member->Note(kGrpc, client->SecondsPerCall(kGrpcCalls));
      member->Note(kWindows, WindowSeconds(long_one.get()));
    }
    member->Barrier();
  }
}

}  // namespace

absl::StatusOr<std::vector<Row>> BenchSdkStep(int rounds, const std::string& executor_binary) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ClusterProcess> cluster,
                   ClusterProcess::Start(2, executor_binary));
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
  std::vector<double> windows = result.series[kWindows];
  for (double& value : windows) value *= 1e6;
  rows.push_back(Row{"G9", "unshard and reshard of a unit, host time", 1, QuartilesOf(windows),
                     "us", Better::kLower, 5, 10, result.loaded_rounds});
  return rows;
}

}  // namespace bench
}  // namespace tessera
