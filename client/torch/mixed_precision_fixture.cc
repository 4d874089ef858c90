#include "client/torch/mixed_precision_fixture.h"

#include <thread>

#include "base/status_matchers.h"
#include "client/torch/precision_rules.h"

namespace tessera {

torch::Tensor Batch(int rank, int64_t step) {
  return torch::sin(torch::arange(12, torch::kFloat32).view({3, 4}) + 5 * rank + 3 * step);
}

torch::Tensor Loss(const torch::Tensor& output) {
  return (output.to(torch::kFloat32) - 0.25).pow(2).sum();
}

AttachOptions With(const MixedPrecision& precision) {
  AttachOptions attach;
  attach.precision = precision;
  return attach;
}

void MixedPrecisionTest::SetUp() {
  torch::set_num_threads(1);
  LocalCluster::Options options;
  options.num_devices = 2;
  auto cluster = LocalCluster::Start(options);
  ASSERT_OK(cluster);
  cluster_ = *std::move(cluster);
}

std::shared_ptr<MixedNet> WithParametersIn(DType dtype, std::shared_ptr<MixedNet> net) {
  for (torch::Tensor& parameter : net->parameters())
    parameter.set_data(parameter.to(ScalarTypeOf(dtype)));
  return net;
}

SessionOptions MixedPrecisionTest::OptionsFor(int rank, int world_size) const {
  SessionOptions options;
  options.coordinator_address = cluster_->coordinator_address();
  options.worker_address = cluster_->worker_address();
  options.job_id = "mixed";
  options.rank = rank;
  options.config.world_size = world_size;
  options.config.optimizer = OptimizerKind::kSgd;
  options.config.groups[0].learning_rate = 0.125;
  options.attach_timeout = absl::Seconds(30);
  options.operation_timeout = absl::Seconds(60);
  return options;
}

void MixedPrecisionTest::ForEachRank(int world_size, const std::function<void(int)>& body) {
  std::vector<std::thread> trainers;
  for (int rank = 0; rank < world_size; ++rank)
    trainers.emplace_back([&body, rank] { body(rank); });
  for (std::thread& trainer : trainers) trainer.join();
}

std::vector<torch::Tensor> MasterParameters(Session& session) {
  std::vector<torch::Tensor> all;
  for (int unit = 0; unit < session.num_units(); ++unit) {
    EXPECT_OK(session.Unshard(unit, Precision::kFull));
    const auto& parameters = session.layout().units[unit].flat.parameters();
    for (size_t p = 0; p < parameters.size(); ++p) {
      all.push_back(torch::from_blob(const_cast<std::byte*>(session.full_parameter(unit, p)),
                                     parameters[p].spec.shape,
                                     ScalarTypeOf(session.full_dtype(unit)))
                        .clone());
    }
    EXPECT_OK(session.Reshard(unit));
  }
  return all;
}

std::vector<torch::Tensor> UnshardedRun(MixedNet& net, int world_size, int64_t steps,
                                        const Dtypes& dtypes) {
  const torch::ScalarType full = net.scale.scalar_type();
  std::vector<torch::Tensor> masters = {net.scale, net.first->weight, net.second->weight};
  for (torch::Tensor& master : masters) master = master.detach().clone();
  for (int64_t step = 1; step <= steps; ++step) {
    std::vector<torch::Tensor> sums(3);
    for (int rank = 0; rank < world_size; ++rank) {
      std::vector<torch::Tensor> p;
      for (const torch::Tensor& master : masters) {
        p.push_back(master.to(dtypes.parameters).clone().requires_grad_());
      }
      const torch::Tensor shift =
          torch::full({4}, 0.1, torch::kFloat64).to(dtypes.buffers).to(dtypes.parameters);
      torch::Tensor x = Batch(rank, step).to(dtypes.parameters);
      x = ((x * p[1] + shift) * p[0]) * p[2] + shift;
      Loss(x).backward();
      for (int i = 0; i < 3; ++i) {
        const torch::Tensor g = p[i].grad().to(dtypes.reduce).to(full);
        sums[i] = rank == 0 ? g.clone() : sums[i] + g;
      }
    }
    for (int i = 0; i < 3; ++i) masters[i] = masters[i] - sums[i] * (1.0f / world_size) * 0.125f;
  }
  return masters;
}

}  // namespace tessera
