#include <unistd.h>

#include <ctime>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "shm/wait_word.h"
#include "tests/bench/benchmarks.h"
#include "tests/bench/empty_grpc.h"
#include "tests/bench/team.h"

namespace tessera {
namespace bench {
namespace {

enum Series { kHot, kIdle, kFutex, kGrpc };

constexpr int kHotTrips = 2000;
constexpr int kIdleTrips = 100;
constexpr int kFutexTrips = 500;
constexpr int kGrpcTrips = 300;
constexpr int kServer = 1;  // The other rank asks.

// The two words of a ring's round trip: one entry submitted, one completed.
struct alignas(128) Ring {
  alignas(128) WaitWord submitted;
  alignas(128) WaitWord completed;
};

void Await(WaitWord* word, uint32_t value, WaitPolicy policy) {
  TESSERA_CHECK(WaitUntil(
                    word, [value](uint32_t v) { return v == value; }, AbortFlag(),
                    absl::Now() + absl::Minutes(1), policy)
                    .ok());
}

// Keeps the CPU busy until the peer has gone to sleep.
void SpinUntilAsleep(const WaitWord& word) {
  while (word.sleepers.load() == 0) {
  }
  const absl::Time until = absl::Now() + absl::Microseconds(50);
  while (absl::Now() < until) {
  }
}

class RoundTrips {
 public:
  RoundTrips(TeamMember* member, Ring* ring) : member_(member), ring_(ring) {}

  // `trips` round trips; with `idle`, each one finds the server asleep. Timed only where the peer
  // is hot; otherwise the mean of the timed parts is noted.
  void Run(int series, int trips, WaitPolicy policy, bool idle) {
    int64_t timed_ns = 0;
    member_->Barrier();
    for (int i = 0; i < trips; ++i) {
      ++turn_;
      if (member_->rank() == kServer) {
        Await(&ring_->submitted, turn_, policy);
        Publish(&ring_->completed, turn_);
      } else {
        if (idle) SpinUntilAsleep(ring_->submitted);
        const int64_t start_ns = absl::GetCurrentTimeNanos();
        Publish(&ring_->submitted, turn_);
        Await(&ring_->completed, turn_, policy);
        timed_ns += absl::GetCurrentTimeNanos() - start_ns;
      }
    }
    member_->Note(series, 1e-9 * timed_ns / trips);
  }

 private:
  TeamMember* member_;
  Ring* ring_;
  uint32_t turn_ = 0;
};

void Measure(TeamMember* member, const std::string& socket) {
  auto* ring = reinterpret_cast<Ring*>(member->shared());
  RoundTrips trips(member, ring);
  std::unique_ptr<EmptyGrpcServer> server;
  if (member->rank() == kServer) server = std::make_unique<EmptyGrpcServer>(socket);
  member->Barrier();
  EmptyGrpcClient client(socket);
  while (member->NextRound()) {
    trips.Run(kHot, kHotTrips, WaitPolicy::ForParties(2), /*idle=*/false);
    trips.Run(kIdle, kIdleTrips, WaitPolicy::ForParties(2), /*idle=*/true);
    trips.Run(kFutex, kFutexTrips, WaitPolicy{0, 0}, /*idle=*/false);
    member->Barrier();
    if (member->rank() != kServer) member->Note(kGrpc, client.SecondsPerCall(kGrpcTrips));
    member->Barrier();
  }
}

}  // namespace

absl::StatusOr<std::vector<Row>> BenchRoundTrip(int rounds) {
  TeamOptions options;
  options.size = 2;
  options.rounds = rounds;
  const std::string socket = absl::StrCat("/tmp/tessera_bench_", getpid(), ".sock");
  ASSIGN_OR_RETURN(const TeamResult result,
                   RunTeam(options, [&](TeamMember* member) { Measure(member, socket); }));
  std::vector<Row> rows;
  const auto micros = [&](const char* what, int series) {
    std::vector<double> values = result.series[series];
    for (double& value : values) value *= 1e6;
    rows.push_back(Row{"G8", what, 2, QuartilesOf(values), "us", Better::kNeither, 0, 0,
                       result.loaded_rounds});
  };
  micros("ring round trip, hot", kHot);
  micros("ring round trip, executor asleep", kIdle);
  micros("futex round trip, both sides always sleep", kFutex);
  micros("empty gRPC unary call, Unix socket", kGrpc);
  rows.push_back(Row{"G8", "hot ring round trip / gRPC unary", 2,
                     RatioOf(result.series[kHot], result.series[kGrpc]), "ratio", Better::kLower,
                     1.0 / 20, 1.0 / 8, result.loaded_rounds});
  rows.push_back(Row{"G8", "round trip to a sleeping executor / futex round trip", 2,
                     RatioOf(result.series[kIdle], result.series[kFutex]), "ratio", Better::kLower,
                     2, 2, result.loaded_rounds});
  return rows;
}

}  // namespace bench
}  // namespace tessera
