// This rank's part of each parameter in the hands of the user's own optimizer.
//
//   auto shards = *LocalShards::Open(session);
//   session->RunStep([&] {
//     ... forward, backward ...
//     RETURN_IF_ERROR(shards->Begin().status());   reduces; values and gradients are there
//     for (size_t i = 0; i < shards->parts().size(); ++i)
//       if (shards->has_gradient(i)) Update(shards->values(i), shards->gradient(i));
//     return shards->Commit();                     a step, on all ranks or on none
//   });
//
// Each rank updates its own elements, so what an optimizer does must not depend on other elements
// of the parameter (SGD and Adam do not). Gradients are what the job's own optimizer would get: the
// mean over the ranks, after all divisions, clipped as config.max_gradient_norm says. The job's
// moments stay as they are. What the user's optimizer remembers is the trainer's: after an Aborted
// step it must be as it was before, and a trainer that is killed takes it along (docs/adr/0017).
//
// Memory: the rank's shards twice, in the full dtype; at one address for life. The
// session outlives this. As a Session: one thread at a time.
#ifndef TESSERA_LOCAL_SHARDS_H_
#define TESSERA_LOCAL_SHARDS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "layout/values.h"
#include "tessera/session.h"

namespace tessera {

enum class OpKind : uint32_t;

class LocalShards {
 public:
  // What this rank holds of an original parameter: elements [begin_elements, begin_elements +
  // numel) of it. numel is 0 where it holds none.
  struct Part {
    int unit = 0;
    int parameter = 0;
    int64_t begin_elements = 0;
    int64_t numel = 0;
  };

  // Reads the values. Errors: FailedPrecondition  the job has no initial values; Aborted.
  static absl::StatusOr<std::unique_ptr<LocalShards>> Open(Session* session);

  // Of each parameter of the model, units and parameters in order.
  const std::vector<Part>& parts() const { return parts_; }
  const TensorSpec& spec(size_t part) const;
  Values values(size_t part);
  // Between Begin and Commit. Zeroes where has_gradient is false.
  Values gradient(size_t part);
  // Whether some rank gave the parameter a gradient since the last step.
  bool has_gradient(size_t part) const { return has_gradient_[part]; }

  // Collective. Reduces what is not reduced, then reads gradients, and values where they are not
  // those of the last Commit. `options`: as Session::Step; rates and groups mean nothing here.
  // skip_non_finite: the result says `skipped`, and the step is over.
  // Errors: as Session::Step. The gradients of a non-finite step are dropped.
  absl::StatusOr<StepResult> Begin(const StepOptions& options = StepOptions());
  // Collective: makes the values of all ranks the job's parameters, as a step. On all ranks or on
  // none; after Aborted, session->next_step() tells which, once Recover() returned.
  // Errors: FailedPrecondition  without a Begin; Aborted.
  absl::Status Commit();

 private:
  explicit LocalShards(Session* session);
  absl::Status ReadValues();
  absl::Status ReadGradients(double scale);
  using Bytes = std::vector<std::byte>;  // A unit's shard, in the full dtype.
  absl::Status Read(OpKind kind, int unit, Bytes* into);
  Values PartOf(std::vector<Bytes>* shards, size_t part) const;

  Session* const session_;
  std::vector<Part> parts_;
  std::vector<int64_t> offsets_;           // By part, in elements: in its unit's shard.
  std::vector<Bytes> values_, gradients_;  // By unit.
  std::vector<bool> has_gradient_;         // By part.
  int64_t values_of_ = -1;  // The version of the state that values_ are; -1: may have been changed.
  // Of the Begin that Commit belongs to: epoch and version of the state; 0: none.
  uint32_t begun_epoch_ = 0;
  int64_t begun_at_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_LOCAL_SHARDS_H_
