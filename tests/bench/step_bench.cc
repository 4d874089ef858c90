// G5: a whole training step of the demo's model.
//
//   compute     forward and backward of each rank's batch, gradients dropped
//   sharded     the same and the rest of a step through Tessera: coordinator, worker and executors
//               in processes of their own
//   replicated  the same by data parallelism: Gloo's all-reduce of one flat gradient buffer, then
//               libtorch's AdamW on every rank's whole copy
//   floor       what a sharded step has to move at the least, at this machine's rates: each rank
//               reads its slice of all ranks' gradients, and reads and writes its optimizer state

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "tessera/torch/libtorch.h"
#include "tessera/torch/sharded_model.h"
#include "tests/bench/benchmarks.h"
#include "tests/bench/cluster_process.h"
#include "tests/bench/gloo_group.h"
#include "tests/bench/limits.h"
#include "tests/bench/team.h"
#include "tests/demo/gpt.h"

namespace tessera {
namespace bench {
namespace {

enum Series { kCompute, kSharded, kReplicated, kFloor, kComputeCpu, kShardedCpu, kFloorCpu };

constexpr uint64_t kSeed = 1;
constexpr int kRepetitions = 4;
constexpr double kMaxGradientNorm = 1.0;

double OwnCpuSeconds() {
  timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return used.tv_sec + 1e-9 * used.tv_nsec;
}

// Random bytes: what a text says makes no difference to the time.
torch::Tensor Windows(int batch, int64_t context, int rank) {
  torch::manual_seed(kSeed + rank);
  return torch::randint(0, 256, {batch, context + 1}, torch::kInt64);
}

std::vector<torch::Tensor> DistinctParameters(torch::nn::Module& model) {
  std::vector<torch::Tensor> distinct;
  for (const torch::Tensor& parameter : model.parameters()) {
    const auto same = [&](const torch::Tensor& other) { return other.is_same(parameter); };
    if (std::none_of(distinct.begin(), distinct.end(), same)) distinct.push_back(parameter);
  }
  return distinct;
}

// Data parallelism as it is usually done: every rank holds all, and gradients are all-reduced.
class Replica {
 public:
  Replica(const std::string& folder, int rank, int size)
      : model_(demo::MakeGpt(demo::GptConfig(), kSeed)),
        parameters_(DistinctParameters(*model_)),
        optimizer_(parameters_, torch::optim::AdamWOptions(1e-3).weight_decay(0.1)),
        gloo_(folder, rank, size),
        size_(size) {
    int64_t numel = 0;
    for (const torch::Tensor& parameter : parameters_) numel += parameter.numel();
    flat_ = torch::zeros({numel});
    // Gradients live in the flat buffer, so that nothing is copied around the all-reduce.
    int64_t offset = 0;
    for (torch::Tensor& parameter : parameters_) {
      parameter.mutable_grad() = flat_.narrow(0, offset, parameter.numel()).view(parameter.sizes());
      offset += parameter.numel();
    }
  }
  void Step(const torch::Tensor& windows) {
    flat_.zero_();
    demo::NextByteLoss(*model_, windows).backward();
    gloo_.AllReduce(flat_.data_ptr<float>(), flat_.numel());
    flat_.div_(size_);
    torch::nn::utils::clip_grad_norm_(parameters_, kMaxGradientNorm);
    optimizer_.step();
  }

 private:
  std::shared_ptr<demo::Gpt> model_;
  std::vector<torch::Tensor> parameters_;
  torch::optim::AdamW optimizer_;
  GlooGroup gloo_;
  torch::Tensor flat_;
  const int size_;
};

// One rank's share of the bytes that a step moves at the least.
class Floor {
 public:
  Floor(TeamMember* member, int64_t numel)
      : gradients_(reinterpret_cast<float*>(member->shared())),
        size_(member->size()),
        numel_(numel / size_ * size_),
        begin_(numel_ / size_ * member->rank()) {
    for (float*& m : state_) m = reinterpret_cast<float*>(WarmMemory(slice() * sizeof(float)));
    std::fill_n(gradients_ + member->rank() * numel_, numel_, 1e-3f);
  }
  void Run() {
    const float* in[8];
    for (int rank = 0; rank < size_; ++rank) in[rank] = gradients_ + rank * numel_ + begin_;
    ReadManyWriteOne(in, size_, slice(), state_[0]);
    FourReadThreeWrite(state_[0], state_[1], state_[2], state_[3], slice());
  }

 private:
  int64_t slice() const { return numel_ / size_; }
  float* const gradients_;
  const int size_;
  const int64_t numel_;
  const int64_t begin_;
  float* state_[4];
};

void Measure(TeamMember* member, const ClusterProcess& cluster, const std::string& folder,
             int batch, int64_t numel) {
  torch::set_num_threads(1);
  const demo::GptConfig shape;
  const torch::Tensor windows = Windows(batch, shape.context, member->rank());
  auto plain = demo::MakeGpt(shape, kSeed);
  const auto compute = [&] {
    demo::NextByteLoss(*plain, windows).backward();
    for (torch::Tensor& parameter : plain->parameters()) parameter.mutable_grad().reset();
  };
  SessionOptions options;
  options.coordinator_address = cluster.coordinator_address();
  options.worker_address = cluster.worker_address();
  options.job_id = "bench";
  options.rank = member->rank();
  options.config.world_size = member->size();
  options.config.max_gradient_norm = kMaxGradientNorm;
  options.config.groups[0].weight_decay = 0.1;
  auto module = demo::MakeGpt(shape, kSeed);
  auto sharded = ShardedModel::Attach(module, options);
  TESSERA_CHECK(sharded.ok());
  const auto sharded_step = [&] {
    const absl::Status status = (*sharded)->RunStep([&]() -> absl::Status {
      demo::NextByteLoss(*module, windows).backward();
      return (*sharded)->Step();
    });
    TESSERA_CHECK(status.ok());
  };
  Replica replica(folder, member->rank(), member->size());
  Floor floor(member, numel);
  // The first step records the order; the second is the first steady one.
  for (int i = 0; i < 2; ++i) sharded_step();
  // Times `op`, and notes the CPU time that all processes together took for it: what it costs on a
  // machine that others use too.
  const auto timed = [&](int series, int cpu_series, absl::FunctionRef<void()> op) {
    const bool counts_cluster = member->rank() == 0;
    const double own = OwnCpuSeconds();
    const int64_t cluster_ns = counts_cluster ? cluster.CpuNs() : 0;
    member->Time(series, kRepetitions, op);
    double used = OwnCpuSeconds() - own;
    if (counts_cluster) used += 1e-9 * (cluster.CpuNs() - cluster_ns);
    member->Note(cpu_series, used / kRepetitions);
  };
  while (member->NextRound()) {
    timed(kCompute, kComputeCpu, compute);
    timed(kSharded, kShardedCpu, sharded_step);
    member->Time(kReplicated, kRepetitions, [&] { replica.Step(windows); });
    timed(kFloor, kFloorCpu, [&] { floor.Run(); });
  }
}

int64_t CountParameters() {
  // As tests/demo/gpt.cc builds it; counted without libtorch, which must not run before the fork.
  const demo::GptConfig c;
  const int64_t block = 12 * c.width * c.width + 13 * c.width;
  return (c.vocabulary + c.context + 2) * c.width + c.blocks * block;
}

}  // namespace

absl::StatusOr<std::vector<Row>> BenchStep(int size, int rounds, int batch,
                                           const std::string& executor_binary) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ClusterProcess> cluster,
                   ClusterProcess::Start(size, executor_binary));
  std::string folder = "/tmp/tessera_bench_XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return absl::ResourceExhaustedError("no folder in /tmp");
  TeamOptions options;
  options.size = size;
  options.rounds = rounds;
  const int64_t numel = CountParameters();
  options.shared_bytes = size * numel * static_cast<int64_t>(sizeof(float));
  options.helpers_cpu_ns = [&cluster] { return cluster->CpuNs(); };
  const auto result = RunTeam(
      options, [&](TeamMember* member) { Measure(member, *cluster, folder, batch, numel); });
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  RETURN_IF_ERROR(result.status());
  const auto& series = result->series;
  std::vector<Row> rows;
  const auto millis = [&](const char* what, int which) {
    std::vector<double> values = series[which];
    for (double& value : values) value *= 1e3;
    rows.push_back(Row{"G5", absl::StrCat(what, ", batch ", batch), size, QuartilesOf(values), "ms",
                       Better::kNeither, 0, 0, result->loaded_rounds});
  };
  millis("forward and backward only", kCompute);
  millis("sharded step", kSharded);
  millis("replicated step (Gloo all-reduce, libtorch AdamW)", kReplicated);
  millis("bytes of a sharded step at this machine's rates", kFloor);
  std::vector<double> floor = series[kCompute];
  for (size_t i = 0; i < floor.size(); ++i) floor[i] += series[kFloor][i];
  const bool large = batch >= kLargeBatch;
  rows.push_back(Row{"G5", absl::StrCat("sharded step / (compute + bytes), batch ", batch), size,
                     RatioOf(series[kSharded], floor), "ratio", Better::kLower, large ? 1.03 : 1.08,
                     1.15, result->loaded_rounds});
  std::vector<double> cpu_floor = series[kComputeCpu];
  for (size_t i = 0; i < cpu_floor.size(); ++i) cpu_floor[i] += series[kFloorCpu][i];
  rows.push_back(Row{"G5",
                     absl::StrCat("the same in processor time of all processes, batch ", batch),
                     size, RatioOf(series[kShardedCpu], cpu_floor), "ratio", Better::kNeither, 0, 0,
                     result->loaded_rounds});
  rows.push_back(Row{"G5", absl::StrCat("sharded step / replicated step, batch ", batch), size,
                     RatioOf(series[kSharded], series[kReplicated]), "ratio", Better::kLower, 1.0,
                     1.0, result->loaded_rounds});
  return rows;
}

}  // namespace bench
}  // namespace tessera
