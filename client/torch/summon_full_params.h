// The private copies of whole parameters behind ShardedModel::SummonFullParams (sharded_model.h).
#ifndef TESSERA_CLIENT_TORCH_SUMMON_FULL_PARAMS_H_
#define TESSERA_CLIENT_TORCH_SUMMON_FULL_PARAMS_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/torch/module_units.h"
#include "tessera/session.h"
#include "tessera/torch/libtorch.h"
#include "tessera/torch/sharded_model.h"

namespace tessera {

// Errors: Unimplemented  rank0_only with writeback; offload_to_cpu with with_grads, or where the
//                        strategy shards nothing.
absl::Status ValidateSummonOptions(const SummonOptions& options, const JobConfig& config);

// The units that `options` mean. Errors: InvalidArgument  there is none.
absl::StatusOr<std::vector<int>> UnitsToSummon(const ModuleUnits& units,
                                               const torch::nn::Module& root,
                                               const SummonOptions& options);

// The private copies of some units, from Open to Close. Thread-compatible.
class FullParameters {
 public:
  // Neither is owned.
  FullParameters(Session* session, ModuleUnits* units, std::vector<int> which,
                 const SummonOptions& options)
      : session_(session), units_(units), which_(std::move(which)), options_(options) {}

  // Gives the module the copies. Errors: as Session::ReadParameters; FailedPrecondition  with_grads,
  // and only some ranks have reduced a unit, named. The module is unchanged then.
  absl::Status Open();
  // Makes the collective calls of Open once more, and forgets what they give.
  absl::Status ReadAgain();
  // Errors: FailedPrecondition  the body left a tensor of another shape, named.
  absl::Status Check() const;
  // Errors: as Session::WriteParameters and WriteGradients.
  absl::Status WriteBack();
  // Gives the module the job's memory again.
  void Close();

  const std::vector<int>& units() const { return which_; }

 private:
  // Whether this rank's module gets copies.
  bool HasCopy() const { return !options_.rank0_only || session_->rank() == 0; }
  // Makes room in grad() for what is read.
  void TakeOutGradients();
  // For each of the units what each rank says of it: [unit * world_size + rank].
  absl::StatusOr<std::vector<char>> Exchange(const std::function<bool(int unit)>& own) const;
  absl::Status CheckReducedAlike() const;
  absl::Status WriteGradients();
  absl::Status WriteGradientsOf(int unit);

  Session* const session_;
  ModuleUnits* const units_;
  const std::vector<int> which_;
  const SummonOptions options_;
  bool open_ = false;
  // Parameters and what stood in their grad(), to be put back.
  std::vector<std::pair<torch::Tensor, torch::Tensor>> taken_out_;
};

// Where the job has a parameter: in the unit's compute dtype or in full precision.
const void* ClusterMemory(const Session& session, int unit, int parameter, bool full_precision);

// Copies of the job's memory. `values` as it is in the shards.
torch::Tensor TensorOf(ConstValues values, const std::vector<int64_t>& shape);
// The values of any float tensor, into as many elements.
void CopyValues(const torch::Tensor& tensor, Values values);
// Errors: FailedPrecondition  naming `of` ("parameter") and the parameter: another shape, none, or
// not dense.
absl::Status CheckShape(const torch::Tensor& tensor, const TensorSpec& spec, absl::string_view of);
// As set_data, also from and to the meta device, which libtorch refuses.
void ReplaceMemory(torch::Tensor& tensor, const torch::Tensor& memory);
// Gives the parameter the job's memory, at the address that it has for the session's life.
void UseClusterMemory(const Session& session, int unit, int parameter, torch::Tensor& tensor,
                      bool full_precision = false);

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_SUMMON_FULL_PARAMS_H_
