// How much of the way between hosts is hidden by compute: two workers with one rank each, over TCP
// by the loopback interface. Compute is a wait, as that of an accelerator, so that it takes no CPU
// from the transport.
//
//   communication   steps that compute nothing
//   compute         the waits alone
//   update          what is left of a step once everything is reduced: the vote and the optimizer
//   both            whole steps
//
// The ideal is the larger of compute and communication. An optimizer that runs after backward is
// hidden by nothing, so there it does not count as communication, but is added.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "tests/bench/bench_session.h"
#include "tests/bench/benchmarks.h"
#include "tests/bench/team.h"

namespace tessera {
namespace bench {
namespace {

enum Series { kCommunication, kCompute, kUpdate, kBoth };

constexpr int kUnits = 16;
constexpr int64_t kUnitNumel = 1 << 20;

struct Compute {
  absl::Duration forward = absl::ZeroDuration(), backward = absl::ZeroDuration();  // Of a unit.
};

// All of a step but its end.
void ForwardAndBackward(Session* session, const Compute& compute,
                        const std::vector<float>& gradient) {
  TESSERA_CHECK(session->Unshard(0).ok());
  for (int unit = 1; unit < kUnits; ++unit) {
    TESSERA_CHECK(session->Unshard(unit).ok());
    absl::SleepFor(compute.forward);
    TESSERA_CHECK(session->Reshard(unit).ok());
  }
  for (int unit = kUnits - 1; unit > 0; --unit) {
    TESSERA_CHECK(session->Unshard(unit).ok());
    absl::SleepFor(compute.backward);
    ReduceUnit(session, unit, gradient);
    TESSERA_CHECK(session->Reshard(unit).ok());
  }
  ReduceUnit(session, 0, gradient);
  TESSERA_CHECK(session->Reshard(0).ok());
}

void Step(Session* session, const Compute& compute, const std::vector<float>& gradient) {
  ForwardAndBackward(session, compute, gradient);
  TESSERA_CHECK(session->Step().ok());
}

double SecondsOf(TeamMember* member, absl::FunctionRef<void()> body) {
  member->Barrier();
  const int64_t begin_ns = absl::GetCurrentTimeNanos();
  body();
  member->Barrier();
  return 1e-9 * (absl::GetCurrentTimeNanos() - begin_ns);
}

void Measure(TeamMember* member, const ClusterProcess& cluster, const JobConfig& config) {
  const std::unique_ptr<Session> session = OpenSession(
      cluster, "overlap", EqualUnits(kUnits, kUnitNumel), config, member->rank(), member->rank());
  const std::vector<float> gradient(kUnitNumel, 0.01f);
  for (int step = 0; step < 3; ++step) Step(session.get(), Compute(), gradient);
  while (member->NextRound()) {
    const double communication =
        SecondsOf(member, [&] { Step(session.get(), Compute(), gradient); });
    // As long as the communication, so that each can hide the other entirely.
    const double unit_seconds = communication / (3.0 * (kUnits - 1));
    const Compute compute = {absl::Seconds(unit_seconds), absl::Seconds(2 * unit_seconds)};
    const double waits = SecondsOf(member, [&] {
      for (int unit = 1; unit < kUnits; ++unit) {
        absl::SleepFor(compute.forward);
        absl::SleepFor(compute.backward);
      }
    });
    ForwardAndBackward(session.get(), Compute(), gradient);
    absl::SleepFor(absl::Seconds(communication));  // Until everything is reduced, and longer.
    const double update = SecondsOf(member, [&] { TESSERA_CHECK(session->Step().ok()); });
    const double both = SecondsOf(member, [&] { Step(session.get(), compute, gradient); });
    if (member->rank() != 0) continue;
    member->Note(kCommunication, communication);
    member->Note(kCompute, waits);
    member->Note(kUpdate, update);
    member->Note(kBoth, both);
  }
}

std::vector<Row> Judge(bool in_backward, const TeamResult& result) {
  const auto& s = result.series;
  std::vector<double> ideal, sum;
  for (size_t round = 0; round < s[kBoth].size(); ++round) {
    const double update = in_backward ? 0 : s[kUpdate][round];
    ideal.push_back(std::max(s[kCommunication][round] - update, s[kCompute][round]) + update);
    sum.push_back(s[kCommunication][round] + s[kCompute][round]);
  }
  std::vector<Row> rows;
  const std::string how = in_backward ? "updates in backward: " : "";
  const auto millis = [&](const char* what, int series) {
    std::vector<double> values = s[series];
    for (double& value : values) value *= 1e3;
    rows.push_back(Row{"overlap", how + what, 2, QuartilesOf(values), "ms", Better::kNeither, 0, 0,
                       result.loaded_rounds});
  };
  millis("two hosts, a step without compute", kCommunication);
  millis("two hosts, compute alone", kCompute);
  millis("two hosts, the end of a step", kUpdate);
  millis("two hosts, a step with compute", kBoth);
  rows.push_back(Row{"overlap",
                     in_backward ? how + "step / the larger of compute and communication"
                                 : "step / the larger of compute and communication, and update",
                     2, RatioOf(s[kBoth], ideal), "ratio", Better::kLower, 1.1, 1.25,
                     result.loaded_rounds});
  rows.push_back(Row{"overlap", how + "step / compute and communication one after the other", 2,
                     RatioOf(s[kBoth], sum), "ratio", Better::kNeither, 0, 0,
                     result.loaded_rounds});
  return rows;
}

absl::StatusOr<std::vector<Row>> Bench(int rounds, const std::string& executor_binary,
                                       bool in_backward) {
  JobConfig config;
  config.world_size = 2;
  config.optimizer_in_backward = in_backward;
  ASSIGN_OR_RETURN(const std::unique_ptr<ClusterProcess> cluster,
                   ClusterProcess::Start(1, executor_binary, /*num_workers=*/2));
  TeamOptions options;
  options.size = 2;
  options.rounds = rounds;
  options.pin = false;
  options.helpers_cpu_ns = [&cluster] { return cluster->CpuNs(); };
  ASSIGN_OR_RETURN(const TeamResult result, RunTeam(options, [&](TeamMember* member) {
                     Measure(member, *cluster, config);
                   }));
  return Judge(in_backward, result);
}

}  // namespace

absl::StatusOr<std::vector<Row>> BenchOverlap(int rounds, const std::string& executor_binary) {
  ASSIGN_OR_RETURN(std::vector<Row> rows, Bench(rounds, executor_binary, false));
  ASSIGN_OR_RETURN(const std::vector<Row> in_backward, Bench(rounds, executor_binary, true));
  rows.insert(rows.end(), in_backward.begin(), in_backward.end());
  return rows;
}

}  // namespace bench
}  // namespace tessera
