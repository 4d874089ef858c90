// One load of a state dict: what of it goes where, and how it gets there. For StateDicts.
//
//   plan     which key each parameter takes      each rank's own, or rank 0's for all
//   fill     this rank's elements of each unit   from whole tensors, from everybody's rows, or from
//                                                flat parts; what no key gives is read from the job
//   write    all of them, as one write           on all ranks or on none
//   finish   buffers and ignored parameters      after the write
//
// Collective. One use, one thread; the model outlives this.
#ifndef TESSERA_CLIENT_TORCH_STATE_DICT_LOADER_H_
#define TESSERA_CLIENT_TORCH_STATE_DICT_LOADER_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/torch/precision_rules.h"
#include "client/torch/state_exchange.h"
#include "client/torch/state_sites.h"
#include "layout/shard_view.h"
#include "tessera/torch/sharded_model.h"
#include "tessera/torch/state_dicts.h"

namespace tessera {

class StateDictLoader {
 public:
  // `sites` and `prefix`: of the module that is loaded.
  StateDictLoader(ShardedModel* model, std::vector<StateSite> sites, std::string prefix,
                  StateDictType type, const LoadStateOptions& options)
      : model_(model),
        session_(&model->session()),
        exchange_(session_),
        sites_(std::move(sites)),
        prefix_(std::move(prefix)),
        type_(type),
        options_(options) {}

  // Errors: as StateDicts::Load.
  absl::StatusOr<LoadStateReport> Load(const StateDict& dict);

 private:
  using PlainValue = std::pair<torch::Tensor, torch::Tensor>;  // State of the trainer, its value.

  bool reads_dict() const { return !options_.from_rank0 || session_->rank() == 0; }
  const TensorSpec& SpecOf(int unit, int p) const {
    return session_->layout().units[unit].flat.parameters()[p].spec;
  }
  torch::ScalarType FullTypeOf(int unit) const { return ScalarTypeOf(session_->full_dtype(unit)); }
  int64_t ChunksOf(int unit) const { return session_->layout().units[unit].shards.num_shards(); }

  absl::Status Try(const StateDict& dict);
  // Of one dictionary alone. Errors: NotFound, InvalidArgument.
  absl::Status Plan(const StateDict& dict);
  // The key that gives the site's state.
  std::string KeyOf(const StateSite& site) const;
  // Errors: NotFound  strict, and keys are missing or unexpected.
  absl::Status CheckKeys() const;
  // Gives every rank rank 0's plan.
  absl::Status SharePlan();
  // Errors: FailedPrecondition  some rank's dictionary gives other parameters.
  absl::Status ComparePlans();
  // Which parameters are given, a byte for each.
  std::vector<char> GivenBytes() const;

  absl::Status FillUnit(const StateDict& dict, int unit);
  // The parameter's elements of this rank, from all of it.
  void Take(int unit, int p, const torch::Tensor& whole);
  void TakeFlat(int unit, const torch::Tensor& flat);
  void TakePlain(const StateDict& dict);
  absl::Status SharePlain(const StateDict& dict);
  absl::Status Write();

  ShardedModel* const model_;
  Session* const session_;
  StateExchange exchange_;
  const std::vector<StateSite> sites_;
  const std::string prefix_;
  const StateDictType type_;
  const LoadStateOptions options_;

  LoadStateReport report_;
  // By unit: each parameter's, LOCAL's all the same; empty: none gives it.
  std::map<int, std::vector<std::string>> keys_;
  // By unit: the slices of this rank's shard, and their values, flat, in the full dtype.
  std::map<int, std::vector<ParameterSlice>> slices_;
  std::map<int, std::vector<torch::Tensor>> values_;
  std::vector<PlainValue> plain_;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_STATE_DICT_LOADER_H_
