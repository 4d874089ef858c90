#include "tests/trials/trial_run.h"

#include <algorithm>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "tessera/local_cluster.h"
#include "tessera/stored_model.h"
#include "tessera/torch/sharded_model.h"

namespace tessera::trials {
namespace {

constexpr int64_t kSteps = 4;
constexpr int64_t kRows = 24;  // Enough for batch norm not to blow up what bf16 rounds.
constexpr double kLearningRate = 0.1;

using Tensors = std::map<std::string, torch::Tensor>;

std::shared_ptr<Net> MakeNet(const TrialCase& trial, const Setting& setting) {
  static absl::Mutex mu(absl::kConstInit);  // libtorch's seed is the process's.
  absl::MutexLock lock(&mu);
  torch::manual_seed(11);
  auto net = std::make_shared<Net>(setting.num_blocks);
  if (setting.dtype == DType::kFp64) net->to(torch::kDouble);
  if (trial.prepare != nullptr) trial.prepare(*net);
  return net;
}

torch::Tensor DataOf(const Setting& setting, int64_t step, int rank) {
  const auto type = setting.dtype == DType::kFp64 ? torch::kDouble : torch::kFloat;
  return torch::sin(torch::arange(kRows * kWidth, type).view({kRows, kWidth}) * (step + 0.5) +
                    2.0 * rank);
}

torch::Tensor Evaluate(Net& net, const Setting& setting) {
  net.eval();
  const torch::NoGradGuard no_grad;
  const torch::Tensor y = net.forward(DataOf(setting, 99, 0)).to(torch::kDouble);
  net.train();
  return y;
}

Tensors CopyOf(const Net& net) {
  Tensors copies;
  for (const auto& item : net.named_parameters())
    copies[item.key()] = item.value().detach().to(torch::kDouble);
  return copies;
}

struct Outcome {
  Tensors parameters;
  torch::Tensor evaluation;
};

// The mean over the ranks becomes each one's.
void AverageGradients(const std::vector<std::vector<torch::Tensor>>& ranks) {
  for (size_t p = 0; p < ranks[0].size(); ++p) {
    torch::Tensor sum;
    for (const auto& rank : ranks) {
      const torch::Tensor& gradient = rank[p].grad();
      if (gradient.defined()) sum = sum.defined() ? sum + gradient : gradient.clone();
    }
    for (const auto& rank : ranks) {
      torch::Tensor parameter = rank[p];
      parameter.mutable_grad() =
          sum.defined() ? sum / static_cast<double>(ranks.size()) : torch::Tensor();
    }
  }
}

Outcome RunPlain(const TrialCase& trial, const Setting& setting) {
  std::vector<std::shared_ptr<Net>> nets;
  std::vector<std::vector<torch::Tensor>> parameters;
  std::vector<std::unique_ptr<torch::optim::SGD>> optimizers;
  for (int rank = 0; rank < setting.world_size; ++rank) {
    nets.push_back(MakeNet(trial, setting));
    parameters.push_back(nets.back()->parameters());
    optimizers.push_back(std::make_unique<torch::optim::SGD>(parameters.back(), kLearningRate));
  }
  for (int64_t step = 1; step <= kSteps; ++step) {
    bool taken = true;
    for (int rank = 0; rank < setting.world_size; ++rank)
      taken = trial.body(*nets[rank], DataOf(setting, step, rank), step);
    if (taken) AverageGradients(parameters);
    for (int rank = 0; rank < setting.world_size; ++rank) {
      if (taken && trial.clip != nullptr) {
        const Clip clip = trial.clip(step);
        torch::nn::utils::clip_grad_norm_(parameters[rank], clip.max_norm, clip.p);
      }
      if (taken) optimizers[rank]->step();
      optimizers[rank]->zero_grad();
    }
  }
  return {CopyOf(*nets[0]), Evaluate(*nets[0], setting)};
}

absl::Status CompareTensors(const std::string& what, const torch::Tensor& value,
                            const torch::Tensor& expected, const Setting& setting) {
  const bool low = setting.dtype == DType::kBf16;
  if (torch::allclose(value, expected, low ? 5e-2 : 1e-4, low ? 3e-2 : 1e-5))
    return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, " differs from the plain module's by up to ",
                                          (value - expected).abs().max().item<double>()));
}

absl::Status Compare(const Outcome& outcome, const Outcome& expected, const Setting& setting) {
  for (const auto& [name, value] : outcome.parameters)
    RETURN_IF_ERROR(CompareTensors(absl::StrCat("parameter '", name, "'"), value,
                                   expected.parameters.at(name), setting));
  return CompareTensors("the evaluation", outcome.evaluation, expected.evaluation, setting);
}

// One rank of the attached model.
class Rank {
 public:
  Rank(const TrialCase& trial, const Setting& setting, const LocalCluster& cluster, int rank)
      : trial_(trial), setting_(setting), rank_(rank) {
    options_.coordinator_address = cluster.coordinator_address();
    options_.worker_address = cluster.worker_address();
    options_.rank = rank;
    options_.config.world_size = setting.world_size;
    options_.config.strategy = setting.strategy;
    options_.config.optimizer = OptimizerKind::kSgd;
    options_.config.groups[0].learning_rate = kLearningRate;
    options_.config.groups[0].weight_decay = 0;
    options_.config.collective_timeout = absl::Seconds(20);
    options_.operation_timeout = absl::Seconds(60);
    if (trial.last_rank != LastRank::kTrains) {
      options_.config.collective_timeout = absl::Milliseconds(300);
      options_.operation_timeout = options_.attach_timeout = absl::Seconds(2);
    }
    if (setting.dtype == DType::kBf16) {
      attach_.precision.param_dtype = DType::kBf16;
      attach_.precision.reduce_dtype = DType::kFp32;
      attach_.precision.cast_forward_inputs = true;
    }
  }

  absl::Status Train() {
    RETURN_IF_ERROR(Attach("trained"));
    for (int64_t step = 1; step <= kSteps; ++step) {
      const bool is_last = rank_ == setting_.world_size - 1;
      if (trial_.last_rank == LastRank::kLeaves && is_last && step == 3) return absl::OkStatus();
      RETURN_IF_ERROR(model_->RunStep([&]() -> absl::Status {
        if (!trial_.body(*net_, DataOf(setting_, step, rank_), step)) return absl::OkStatus();
        if (trial_.clip != nullptr) {
          const Clip clip = trial_.clip(step);
          RETURN_IF_ERROR(model_->ClipGradNorm(clip.max_norm, clip.p).status());
        }
        return model_->Step();
      }));
    }
    return absl::OkStatus();
  }
  absl::Status Save(const std::string& path) { return model_->session().Save(path); }
  // Into a model of another job.
  absl::Status LoadAnew(const std::string& path) {
    model_.reset();
    RETURN_IF_ERROR(Attach("loaded"));
    return LoadModel(&model_->session(), path).status();
  }
  absl::StatusOr<Outcome> Look() {
    Outcome outcome;
    SummonOptions read_only;
    read_only.writeback = false;
    RETURN_IF_ERROR(model_->SummonFullParams(read_only, [&] {
      outcome.parameters = CopyOf(*net_);
      return absl::OkStatus();
    }));
    outcome.evaluation = Evaluate(*net_, setting_);
    return outcome;
  }

 private:
  absl::Status Attach(const std::string& job) {
    options_.job_id = job;
    net_ = MakeNet(trial_, setting_);
    ASSIGN_OR_RETURN(model_, ShardedModel::Attach(net_, options_, AlwaysWrap(), attach_));
    return absl::OkStatus();
  }

  const TrialCase& trial_;
  const Setting setting_;
  const int rank_;
  SessionOptions options_;
  AttachOptions attach_;
  std::shared_ptr<Net> net_;
  std::unique_ptr<ShardedModel> model_;
};

bool IsRefusal(const absl::Status& status, const std::string& text) {
  return (absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status) ||
          absl::IsUnimplemented(status)) &&
         absl::StrContains(status.message(), text);
}

// Of a case in which the last rank is missing.
absl::Status RunWithMissing(const TrialCase& trial, const Setting& setting,
                            const LocalCluster& cluster, int rank) {
  const int last = setting.world_size - 1;
  if (rank == last && trial.last_rank == LastRank::kNeverComes) return absl::OkStatus();
  const absl::Status trained = Rank(trial, setting, cluster, rank).Train();
  if (rank == last) return trained;
  if (absl::IsDeadlineExceeded(trained) &&
      absl::StrContains(trained.message(), absl::StrCat("rank ", last, " has no trainer")))
    return absl::OkStatus();
  return absl::InternalError(absl::StrCat("not named, but: ", trained.ToString()));
}

absl::Status RunRank(const TrialCase& trial, const Setting& setting, const LocalCluster& cluster,
                     int rank, const Outcome& expected, const std::string& path) {
  if (trial.last_rank != LastRank::kTrains) return RunWithMissing(trial, setting, cluster, rank);
  Rank own(trial, setting, cluster, rank);
  const absl::Status trained = own.Train();
  if (!trial.refusal.empty()) {
    if (IsRefusal(trained, trial.refusal)) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("not refused by name, but: ", trained.ToString()));
  }
  RETURN_IF_ERROR(trained);
  ASSIGN_OR_RETURN(const Outcome outcome, own.Look());
  // Statistics of batch norm are each rank's own, and rank 0's are saved.
  if (rank == 0) RETURN_IF_ERROR(Compare(outcome, expected, setting));
  RETURN_IF_ERROR(own.Save(path));
  RETURN_IF_ERROR(own.LoadAnew(path));
  ASSIGN_OR_RETURN(const Outcome loaded, own.Look());
  return Compare(loaded, expected, setting);
}

}  // namespace

std::string NameOf(const Setting& setting) {
  return absl::StrCat(Name(setting.strategy), ", ", Name(setting.dtype), ", ", setting.num_blocks,
                      " blocks, ", setting.world_size, " ranks");
}

bool Applies(const TrialCase& trial, const Setting& setting) {
  return trial.last_rank == LastRank::kTrains ||
         (setting.world_size > 1 && setting.dtype == DType::kFp32 && setting.num_blocks == 1);
}

std::vector<Setting> AllSettings() {
  std::vector<Setting> all;
  for (const Strategy strategy :
       {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
    for (const DType dtype : {DType::kFp32, DType::kBf16, DType::kFp64}) {
      for (const int num_blocks : {1, 3, 6}) {
        for (const int world_size : {1, 2, 3, 4})
          all.push_back({strategy, dtype, num_blocks, world_size});
      }
    }
  }
  return all;
}

std::vector<Setting> FewSettings() {
  std::vector<Setting> few;
  const std::vector<Setting> all = AllSettings();
  // Latin squares: what the first two values are says what the others are.
  for (size_t strategy = 0; strategy < 3; ++strategy) {
    for (size_t ranks = 0; ranks < 4; ++ranks) {
      const size_t dtype = (strategy + ranks) % 3, blocks = (strategy + 2 * ranks) % 3;
      few.push_back(all[((strategy * 3 + dtype) * 3 + blocks) * 4 + ranks]);
    }
  }
  return few;
}

absl::Status RunTrial(const TrialCase& trial, const Setting& setting, const std::string& folder) {
  torch::set_num_threads(1);
  Outcome expected;
  if (trial.refusal.empty() && trial.last_rank == LastRank::kTrains)
    expected = RunPlain(trial, setting);
  LocalCluster::Options options;
  options.num_devices = 2 * setting.world_size;
  ASSIGN_OR_RETURN(const auto cluster, LocalCluster::Start(options));
  const std::string path = absl::StrCat(folder, "/trial.safetensors");
  std::vector<absl::Status> outcomes(setting.world_size);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < setting.world_size; ++rank) {
    ranks.emplace_back(
        [&, rank] { outcomes[rank] = RunRank(trial, setting, *cluster, rank, expected, path); });
  }
  for (std::thread& rank : ranks) rank.join();
  // The first that is its own: others may only have lost the ranks that had one.
  for (const absl::Status& outcome : outcomes) {
    if (absl::IsInternal(outcome)) return outcome;
  }
  for (const absl::Status& outcome : outcomes) RETURN_IF_ERROR(outcome);
  return absl::OkStatus();
}

}  // namespace tessera::trials
