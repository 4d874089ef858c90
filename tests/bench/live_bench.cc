// A job's state read over gRPC, beside as many bytes that a gRPC server streams from its memory.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "tests/bench/bench_session.h"
#include "tests/bench/benchmarks.h"
#include "tests/bench/plain_stream.h"
#include "tests/bench/team.h"

namespace tessera {
namespace bench {
namespace {

enum Series { kFetch, kRelayed, kPlain, kAgain };

constexpr int kUnits = 4;
constexpr int64_t kUnitNumel = 4 << 20;
// Parameters and two moments, fp32.
constexpr int64_t kStateBytes = 3 * kUnits * kUnitNumel * static_cast<int64_t>(sizeof(float));
constexpr int kServer = 1;  // Of plain bytes; rank 0 is the client.

void Measure(TeamMember* member, const ClusterProcess& cluster, const JobConfig& config) {
  const std::unique_ptr<Session> session =
      OpenSession(cluster, "live", EqualUnits(kUnits, kUnitNumel), config, member->rank());
  std::unique_ptr<PlainStreamServer> server;
  auto* port = reinterpret_cast<int*>(member->shared());
  if (member->rank() == kServer) {
    server = std::make_unique<PlainStreamServer>(kStateBytes);
    *port = server->port();
  }
  member->Barrier();
  StreamClient live(cluster.coordinator_address()), plain(absl::StrCat("127.0.0.1:", *port));
  while (member->NextRound()) {
    member->Barrier();
    if (member->rank() == 0) {
      member->Note(kFetch, live.SecondsForFetch("live", kStateBytes));
      member->Note(kRelayed, live.SecondsFor("live", kStateBytes));
      member->Note(kPlain, plain.SecondsForPlain(kStateBytes, /*again=*/false));
      member->Note(kAgain, plain.SecondsForPlain(kStateBytes, /*again=*/true));
    }
    member->Barrier();
  }
}

}  // namespace

absl::StatusOr<std::vector<Row>> BenchLiveState(int size, int rounds,
                                                const std::string& executor_binary) {
  if (size <= kServer) return absl::InvalidArgumentError("reading live state wants two ranks");
  JobConfig config;
  config.world_size = size;
  ASSIGN_OR_RETURN(const std::unique_ptr<ClusterProcess> cluster,
                   ClusterProcess::Start(size, executor_binary));
  TeamOptions options;
  options.size = size;
  options.rounds = rounds;
  options.pin = false;
  options.helpers_cpu_ns = [&cluster] { return cluster->CpuNs(); };
  ASSIGN_OR_RETURN(const TeamResult result, RunTeam(options, [&](TeamMember* member) {
                     Measure(member, *cluster, config);
                   }));
  const std::string bytes = absl::StrCat(kStateBytes >> 20, " MiB");
  const auto row = [&](const std::string& what, Series over, Series under) {
    return Row{"G14",
               bytes + what,
               size,
               RatioOf(result.series[over], result.series[under]),
               "ratio",
               Better::kHigher,
               0.9,
               0.9,
               result.loaded_rounds};
  };
  std::vector<double> rates;
  for (const double seconds : result.series[kFetch]) rates.push_back(kStateBytes * 1e-9 / seconds);
  std::vector<Row> rows = {
      row(": plain gRPC stream of as many / live state from its worker", kPlain, kFetch),
      row(": plain gRPC stream of one MiB again and again / the same", kAgain, kFetch),
      {"G14", "the same, rate of the live state", size, QuartilesOf(rates), "GB/s",
       Better::kNeither, 0, 0, result.loaded_rounds},
      row(": plain gRPC stream of as many / live state by the coordinator", kPlain, kRelayed)};
  rows.back().better = Better::kNeither;
  return rows;
}

}  // namespace bench
}  // namespace tessera
