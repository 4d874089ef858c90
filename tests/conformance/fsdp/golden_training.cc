#include "tests/conformance/fsdp/golden_training.h"

#include <fstream>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "layout/dtype.h"

namespace tessera::conformance {

Json ReadGolden(const std::string& name) {
  std::ifstream file(absl::StrCat("tests/reference/torch/golden/", name, ".json"));
  return Json::parse(file);
}

torch::Tensor RoundedLinearImpl::forward(const torch::Tensor& x) {
  const torch::ScalarType dtype = weight.scalar_type();
  const auto in_fp32 = [](const torch::Tensor& tensor) { return tensor.to(torch::kFloat32); };
  return torch::linear(in_fp32(x.to(dtype)), in_fp32(weight), in_fp32(bias)).to(dtype);
}

GoldenModelImpl::GoldenModelImpl()
    : first(register_module("0", std::make_shared<Sharded<RoundedLinearImpl>>(3, 16))),
      second(register_module("2", std::make_shared<Sharded<RoundedLinearImpl>>(16, 17))),
      third(register_module("4", std::make_shared<RoundedLinearImpl>(17, 3))) {
  torch::NoGradGuard no_grad;
  int64_t k = 0;
  for (auto& parameter : parameters()) {
    const torch::Tensor i = torch::arange(parameter.numel());
    parameter.copy_(
        (((i * 29 + 7 * k++) % 97 - 48).to(torch::kFloat32) / 128).view(parameter.sizes()));
  }
}

torch::Tensor GoldenModelImpl::forward(torch::Tensor x) {
  const auto relu = [](const torch::Tensor& y) { return torch::relu(y.to(torch::kFloat32)); };
  return third->forward(relu(second->forward(relu(first->forward(x))))).to(torch::kFloat32);
}

namespace {

// Part `part` of `num_parts` of a step's eight samples.
torch::Tensor Samples(int64_t step, int64_t factor, int64_t of_step, int64_t modulus,
                      int64_t offset, int64_t part, int64_t num_parts) {
  const torch::Tensor all =
      (((torch::arange(24) * factor + of_step * step) % modulus - offset).to(torch::kFloat32) / 64)
          .view({8, 3});
  const int64_t count = 8 / num_parts;
  return all.slice(0, part * count, (part + 1) * count);
}

torch::Tensor LossOf(GoldenModel& model, int64_t step, int64_t part, int64_t num_parts) {
  return torch::mse_loss(model.forward(Samples(step, 37, 11, 101, 50, part, num_parts)),
                         Samples(step, 41, 13, 103, 51, part, num_parts));
}

JobConfig ConfigOf(const Json& run) {
  JobConfig config;
  config.world_size = run["world_size"];
  config.reshard_group_size = run.value("reshard_group_size", 0);
  config.max_gradient_norm = run.value("max_norm", 0.0);
  config.gradient_slots = 0;
  const Json& options = run["options"];
  ParamGroup& group = config.groups[0];
  group.learning_rate = options["lr"];
  group.weight_decay = options.value("weight_decay", 0.0);
  if (run["optimizer"] == "sgd") {
    config.optimizer = OptimizerKind::kSgd;
    group.momentum = options["momentum"];
    return config;
  }
  EXPECT_EQ(run["optimizer"], "adamw");
  config.optimizer = OptimizerKind::kAdamW;
  group.beta1 = options["betas"][0];
  group.beta2 = options["betas"][1];
  group.epsilon = options["eps"];
  return config;
}

MixedPrecision PrecisionOf(const Json& run) {
  const auto dtype_of = [&](const char* field) {
    const auto dtype = ParseDType(run.value(field, std::string("fp32")));
    EXPECT_OK(dtype);
    return dtype.value_or(DType::kFp32);
  };
  MixedPrecision precision;
  precision.param_dtype = dtype_of("param_dtype");
  precision.reduce_dtype = dtype_of("reduce_dtype");
  // PyTorch's sums are in the reduce dtype; of two ranks that is the rounded mean, doubled.
  precision.keep_low_precision_grads = precision.reduce_dtype != DType::kFp32;
  return precision;
}

// One step; the norm is compared where the run has one.
absl::Status TrainStep(const GoldenRun& golden, int rank, GoldenModel& model, ShardedModel& sharded,
                       int64_t step) {
  const Json& run = golden.run;
  const int64_t parts = run.value("micro_batches", 1);
  const bool sync_each = run.value("sync", std::string("each")) == "each";
  double loss = 0;
  for (int64_t i = 0; i < parts; ++i) {
    const absl::Status status = sharded.SetRequiresGradientSync(sync_each || i + 1 == parts, model);
    if (!status.ok()) return status;
    const torch::Tensor part =
        LossOf(model, step, rank * parts + i, run["world_size"].get<int64_t>() * parts) / parts;
    part.backward();
    loss += part.item<double>();
  }
  EXPECT_NEAR(loss, run["losses"][rank][step - 1].get<double>(), golden.tolerance.loss)
      << "rank " << rank << ", step " << step;
  const auto result = sharded.StepWithResult();
  if (!result.ok()) return result.status();
  if (run.contains("norms") && !run["norms"].empty()) {
    EXPECT_NEAR(result->gradient_norm, run["norms"][step - 1].get<double>(), golden.tolerance.loss)
        << "step " << step;
  }
  return absl::OkStatus();
}

void ExpectParameters(Session& session, const GoldenRun& golden) {
  for (int unit = 0; unit < session.num_units(); ++unit) {
    const auto& parameters = session.layout().units[unit].flat.parameters();
    ASSERT_OK(session.ReadParameters(unit, [&](int p, absl::Span<const float> values) {
      const std::string& name = parameters[p].spec.name;
      const Json& wanted = golden.run["parameters"][name];
      ASSERT_EQ(wanted.size(), values.size()) << name;
      for (size_t i = 0; i < values.size(); ++i)
        ASSERT_NEAR(values[i], wanted[i].get<double>(), golden.tolerance.parameter)
            << name << "[" << i << "], rank " << session.rank();
    }));
  }
}

void TrainRank(const GoldenRun& golden, int rank) {
  SessionOptions options;
  options.config = ConfigOf(golden.run);
  const int world_size = options.config.world_size;
  options.coordinator_address = golden.cluster.coordinator_address();
  options.worker_address = golden.cluster.worker_address(rank * golden.num_workers / world_size);
  options.job_id = golden.job_id;
  options.rank = rank;
  options.config.strategy = golden.strategy;
  if (IsHybrid(golden.strategy)) options.config.shard_group_size = golden.golden["group_size"];
  options.attach_timeout = absl::Seconds(30);
  options.operation_timeout = absl::Seconds(60);
  AttachOptions attach;
  attach.precision = PrecisionOf(golden.run);
  auto model = std::make_shared<GoldenModel>();
  ASSERT_OK_AND_ASSIGN(auto sharded, ShardedModel::Attach(model, options, AlwaysWrap(), attach));
  const int64_t steps = golden.golden["steps"];
  for (int64_t step = 1; step <= steps; ++step)
    ASSERT_OK(sharded->RunStep([&] { return TrainStep(golden, rank, *model, *sharded, step); }));
  ExpectParameters(sharded->session(), golden);
}

}  // namespace

void TrainGolden(const GoldenRun& golden) {
  torch::set_num_threads(1);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < golden.run["world_size"].get<int>(); ++rank)
    ranks.emplace_back([&, rank] { TrainRank(golden, rank); });
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace tessera::conformance
