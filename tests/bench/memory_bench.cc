// G10: memory of a job against the formula, and page faults of its steps, by strategy.
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "job/job_layout.h"
#include "job/job_memory.h"
#include "layout/memory_plan.h"
#include "tests/bench/bench_session.h"
#include "tests/bench/benchmarks.h"
#include "tests/bench/team.h"

namespace tessera {
namespace bench {
namespace {

enum Series { kSharedBytes, kExecutorFaults, kControlFaults };

constexpr int kUnits = 6;
constexpr int64_t kUnitNumel = 4 << 20;
constexpr int kWarmSteps = 4, kSteps = 4;

void Step(Session* session, const std::vector<float>& gradient) {
  for (int unit = 0; unit < kUnits; ++unit) {
    TESSERA_CHECK(session->Unshard(unit).ok());
    if (unit > 0 && ReshardsAfterForward(session->config().strategy))
      TESSERA_CHECK(session->Reshard(unit).ok());
  }
  for (int unit = kUnits - 1; unit >= 0; --unit) {
    if (session->closed(unit)) TESSERA_CHECK(session->Unshard(unit).ok());
    ReduceUnit(session, unit, gradient);
    TESSERA_CHECK(session->Reshard(unit).ok());
  }
  TESSERA_CHECK(session->Step().ok());
}

void Measure(TeamMember* member, const ClusterProcess& cluster, const JobConfig& config) {
  const std::unique_ptr<Session> session =
      OpenSession(cluster, "memory", EqualUnits(kUnits, kUnitNumel), config, member->rank());
  const std::vector<float> gradient(kUnitNumel, 0.01f);
  for (int step = 0; step < kWarmSteps; ++step) Step(session.get(), gradient);
  while (member->NextRound()) {
    member->Barrier();
    const int64_t executors = member->rank() == 0 ? cluster.ExecutorPageFaults() : 0;
    const int64_t control = member->rank() == 0 ? cluster.ControlPageFaults() : 0;
    member->Barrier();
    for (int step = 0; step < kSteps; ++step) Step(session.get(), gradient);
    member->Barrier();
    int64_t shared_bytes = SharedBytesOf(getpid());
    if (member->rank() == 0) {
      const auto per_step = [](int64_t faults) { return static_cast<double>(faults) / kSteps; };
      member->Note(kExecutorFaults, per_step(cluster.ExecutorPageFaults() - executors));
      member->Note(kControlFaults, per_step(cluster.ControlPageFaults() - control));
      shared_bytes += cluster.SharedBytes();
    }
    member->Note(kSharedBytes, static_cast<double>(shared_bytes));
    member->Barrier();
  }
}

}  // namespace

absl::StatusOr<std::vector<Row>> BenchMemory(int size, int rounds, Strategy strategy,
                                             const std::string& executor_binary) {
  JobConfig config;
  config.world_size = size;
  config.strategy = strategy;
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
  ASSIGN_OR_RETURN(const ModelLayout layout, LayOut(EqualUnits(kUnits, kUnitNumel), config));
  ASSIGN_OR_RETURN(const JobMemory memory, JobMemory::Create(layout, config));
  MemoryOptions plan_options;
  plan_options.gradient_slots = config.gradient_slots;
  ASSIGN_OR_RETURN(const MemoryPlan plan, PlanMemory(layout, strategy, plan_options));
  const double mapped = static_cast<double>(memory.MappedBytesOfRank(size) * size);
  std::vector<double> measured = result.series[kSharedBytes], of_plan = measured;
  for (double& value : measured) value /= mapped;
  for (double& value : of_plan) value /= static_cast<double>(plan.host_total_bytes);
  const std::string name(Name(strategy));
  std::vector<Row> rows;
  rows.push_back(Row{"G10", name + ": shared memory of a host / what tessera layout says is mapped",
                     size, QuartilesOf(measured), "ratio", Better::kLower, 1.02, 1.05,
                     result.loaded_rounds});
  rows.push_back(Row{"G10", name + ": the same / the strategy's own need, of one version", size,
                     QuartilesOf(of_plan), "ratio", Better::kNeither, 0, 0, result.loaded_rounds});
  rows.push_back(Row{"G10", name + ": page faults of the executors a step", size,
                     QuartilesOf(result.series[kExecutorFaults]), "faults", Better::kLower, 0, 0,
                     result.loaded_rounds});
  rows.push_back(Row{"G10",
                     name + ": of coordinator and worker, which no step waits for, meanwhile", size,
                     QuartilesOf(result.series[kControlFaults]), "faults", Better::kNeither, 0, 0,
                     result.loaded_rounds});
  return rows;
}

}  // namespace bench
}  // namespace tessera
