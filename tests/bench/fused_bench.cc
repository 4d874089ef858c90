#include <algorithm>

#include "base/check.h"
#include "base/status_macros.h"
#include "tests/bench/benchmarks.h"
#include "tests/bench/team.h"
#include "worker/device/host/kernels.h"

namespace tessera {
namespace bench {
namespace {

enum Series { kFused, kMapped, kCopying };

// A step of one unit: gradients of all ranks and the published parameters are in the shared
// mapping, the optimizer state is private.
class Step {
 public:
  Step(TeamMember* member, int64_t num_parameters)
      : member_(member), count_(num_parameters / member->size()) {
    auto* shared = reinterpret_cast<float*>(member->shared());
    published_ = shared + member->rank() * count_;
    for (int r = 0; r < member->size(); ++r) {
      gradients_.push_back(shared + (r + 1) * num_parameters);
      slices_.push_back(shared + (r + 1) * num_parameters + member->rank() * count_);
      ranges_.push_back({r * count_, (r + 1) * count_});
    }
    float* mine = shared + (member->rank() + 1) * num_parameters;
    for (int64_t i = 0; i < num_parameters; ++i) mine[i] = 1e-3f * static_cast<float>(i % 7 - 3);
    copies_ = reinterpret_cast<float*>(WarmMemory(num_parameters * sizeof(float)));
    for (float** state : {&reduced_, &p_, &m_, &v_}) {
      *state = reinterpret_cast<float*>(WarmMemory(count_ * sizeof(float)));
    }
  }

  void Fused() {
    Arrive();
    host::ReduceAdamStep(slices_, DType::kFp32, 0.5f, params_, count_, p_, m_, v_, p_, m_, v_,
                         published_, {}, nullptr);
    Arrive();
  }

  // Reduce-scatter, AdamW, publication of the own shard.
  void ThreePasses() {
    TESSERA_CHECK(member_->comm()
                      ->ReduceScatterMapped(gradients_, ranges_, {{0, ranges_.back().end}},
                                            DType::kFp32, 0.5f, false, reduced_, nullptr)
                      .ok());
    host::AdamStep(params_, count_, reduced_, p_, m_, v_, p_, m_, v_, nullptr, {});
    std::copy(p_, p_ + count_, published_);
    Arrive();
  }

  // What peers do after AdamW: an all-gather that gives each rank a private copy.
  void CopyEveryShard() {
    const auto* shards = reinterpret_cast<const float*>(member_->shared());
    for (int r = 0; r < member_->size(); ++r) {
      if (r == member_->rank()) continue;
      std::copy(shards + r * count_, shards + (r + 1) * count_, copies_ + r * count_);
    }
    Arrive();
  }

 private:
  void Arrive() { TESSERA_CHECK(member_->comm()->Barrier().ok()); }

  TeamMember* member_;
  int64_t count_;
  host::AdamParams params_;
  std::vector<const void*> gradients_;
  std::vector<const void*> slices_;
  std::vector<ElementRange> ranges_;  // By rank.
  float* published_;
  float* copies_;
  float* reduced_;
  float* p_;
  float* m_;
  float* v_;
};

}  // namespace

absl::StatusOr<std::vector<Row>> BenchFusedStep(int size, int rounds, int64_t num_parameters) {
  TeamOptions options;
  options.size = size;
  options.rounds = rounds;
  options.shared_bytes = (size + 1) * num_parameters * static_cast<int64_t>(sizeof(float));
  const auto measure = [num_parameters](TeamMember* member) {
    Step step(member, num_parameters);
    while (member->NextRound()) {
      member->Time(kFused, 2, [&] { step.Fused(); });
      member->Time(kMapped, 2, [&] { step.ThreePasses(); });
      member->Time(kCopying, 2, [&] {
        step.ThreePasses();
        step.CopyEveryShard();
      });
    }
  };
  ASSIGN_OR_RETURN(const TeamResult result, RunTeam(options, measure));
  std::vector<double> millis = result.series[kFused];
  for (double& value : millis) value *= 1e3;
  std::vector<Row> rows;
  rows.push_back(Row{"G7", "fused reduce, AdamW, publish", size, QuartilesOf(millis), "ms",
                     Better::kNeither, 0, 0, result.loaded_rounds});
  rows.push_back(Row{"G7", "fused / three passes and an all-gather that copies", size,
                     RatioOf(result.series[kFused], result.series[kCopying]), "ratio",
                     Better::kLower, 0.5, 0.65, result.loaded_rounds});
  rows.push_back(Row{"G7", "fused / three passes over mapped shards", size,
                     RatioOf(result.series[kFused], result.series[kMapped]), "ratio",
                     Better::kNeither, 0, 0, result.loaded_rounds});
  return rows;
}

}  // namespace bench
}  // namespace tessera
