// A job's state read over gRPC, against as many bytes that a gRPC server streams from its memory;
// and mapped, against the passing and mapping of as many descriptors and nothing else.
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "tessera/live_map.h"
#include "tests/bench/bench_session.h"
#include "tests/bench/benchmarks.h"
#include "tests/bench/map_floor.h"
#include "tests/bench/plain_stream.h"
#include "tests/bench/team.h"

namespace tessera {
namespace bench {
namespace {

enum Series { kFetch, kRelayed, kPlain, kAgain, kOpen, kRenew, kFloor, kOwnMemory };

constexpr int kUnits = 4;
constexpr int64_t kUnitNumel = 11 << 19;
// Parameters and two moments, fp32.
constexpr int64_t kStateBytes = 3 * kUnits * kUnitNumel * static_cast<int64_t>(sizeof(float));
constexpr int kServer = 1;  // Of plain bytes; rank 0 is the client.

double SecondsOf(absl::FunctionRef<void()> body) {
  const absl::Time begin = absl::Now();
  body();
  return absl::ToDoubleSeconds(absl::Now() - begin);
}

// Of this process, neither a file's nor shared: where copies would be.
int64_t OwnBytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  int64_t kib = 0;
  while (status >> word)
    if (word == "RssAnon:") status >> kib;
  TESSERA_CHECK(kib > 0);
  return kib << 10;
}

std::string FloorPath(const ClusterProcess& cluster) {
  std::string path(absl::StripPrefix(cluster.worker_address(), "unix:"));
  return path.substr(0, path.rfind('/')) + "/floor.sock";
}

// All of the job's state.
std::unique_ptr<LiveMap> OpenMap(const LiveReaderOptions& options) {
  LiveQuery query;
  query.job_id = "live";
  query.moments = true;
  auto map = LiveMap::Open(options, query);
  TESSERA_CHECK(map.ok() && (*map)->version().size_bytes == kStateBytes);
  return *std::move(map);
}

void Measure(TeamMember* member, const ClusterProcess& cluster, const JobConfig& config) {
  const std::unique_ptr<Session> session =
      OpenSession(cluster, "live", EqualUnits(kUnits, kUnitNumel), config, member->rank());
  std::unique_ptr<PlainStreamServer> server;
  std::unique_ptr<MapFloorServer> floor;
  auto* port = reinterpret_cast<int*>(member->shared());
  const int num_regions = member->size() + 1;  // Each rank's, and what they share.
  if (member->rank() == kServer) {
    server = std::make_unique<PlainStreamServer>(kStateBytes);
    floor = std::make_unique<MapFloorServer>(FloorPath(cluster), num_regions,
                                             2 * kStateBytes / member->size());
    *port = server->port();
  }
  member->Barrier();
  StreamClient live(cluster.coordinator_address()), plain(absl::StrCat("127.0.0.1:", *port));
  LiveReaderOptions at_worker;
  at_worker.worker_addresses = {cluster.worker_address()};
  std::unique_ptr<LiveMap> map;
  if (member->rank() == 0) map = OpenMap(at_worker);
  while (member->NextRound()) {
    member->Barrier();
    if (member->rank() == 0) {
      member->Note(kFloor, SecondsForMapFloor(FloorPath(cluster), num_regions));
      member->Note(kRenew, SecondsOf([&] { TESSERA_CHECK(map->Refresh().ok()); }));
      const int64_t before = OwnBytes();
      std::unique_ptr<LiveMap> another;
      member->Note(kOpen, SecondsOf([&] { another = OpenMap(at_worker); }));
      member->Note(kOwnMemory, static_cast<double>(OwnBytes() - before) / (1 << 20));
      another.reset();
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
  const auto ratio = [&](const std::string& what, Series over, Series under, Better better,
                         double aim) {
    rows.push_back({"G14", what, size, RatioOf(result.series[over], result.series[under]), "ratio",
                    better, aim, aim, result.loaded_rounds});
  };
  const std::string floor = " / descriptors passed and mapped";
  // The aims are of all that a process on the worker's node does; what is there once a map is open
  // has none.
  ratio(bytes + ": a map opened" + floor, kOpen, kFloor, Better::kLower, 3);
  ratio(bytes + ": live state from its worker / a map opened", kFetch, kOpen, Better::kHigher, 500);
  ratio(bytes + ": its newest version shown in an open map" + floor, kRenew, kFloor,
        Better::kNeither, 0);
  ratio(bytes + ": live state from its worker / its newest version shown in an open map", kFetch,
        kRenew, Better::kNeither, 0);
  rows.push_back({"G14", bytes + ": memory of its own that a process takes to map it", size,
                  QuartilesOf(result.series[kOwnMemory]), "MiB", Better::kLower, 1, 1,
                  result.loaded_rounds});
  return rows;
}

}  // namespace bench
}  // namespace tessera
