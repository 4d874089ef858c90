// A module sharded over ranks whose trainers have their executors in their process trains to the
// bits of one whose executors are the worker's.
#include <map>
#include <string>

#include "base/status_matchers.h"
#include "client/executor/host_executor.h"
#include "client/torch/torch_cluster.h"
#include "gtest/gtest.h"
#include "tessera/torch/sharded_model.h"

namespace tessera {
namespace {

class HostedExecutorTorchTest : public TorchCluster {
 protected:
  // Rank 0's view after some steps.
  std::map<std::string, torch::Tensor> Train(const std::string& job, unsigned hosts) {
    std::map<std::string, torch::Tensor> result;
    OnEachRank(
        2,
        [&](Trainer& trainer) {
          EXPECT_EQ(trainer.model->session().hosts_executor(), (hosts >> trainer.rank & 1) != 0);
          while (trainer.model->next_step() <= 4) {
            const int64_t step = trainer.model->next_step();
            ASSERT_OK(trainer.model->RunStep([&] {
              LossOf(*trainer.net, step, trainer.rank).backward();
              return trainer.model->Step();
            }));
          }
          const auto whole = WholeParameters(trainer);
          if (trainer.rank == 0) result = whole;
        },
        [&](SessionOptions* options) {
          options->job_id = job;
          if ((hosts >> options->rank & 1) != 0)
            options->host_executor = RunExecutorHere(ExecutorMachine());
        });
    return result;
  }
};

TEST_F(HostedExecutorTorchTest, ModulesTrainToTheSameBitsWhicheverRanksHost) {
  const auto expected = Train("of-the-worker", 0);
  ASSERT_FALSE(expected.empty());
  for (const unsigned hosts : {2u, 3u}) {
    SCOPED_TRACE(hosts);
    const auto values = Train("hosted" + std::to_string(hosts), hosts);
    ASSERT_EQ(values.size(), expected.size());
    for (const auto& [name, value] : expected)
      EXPECT_TRUE(torch::equal(values.at(name), value)) << name;
  }
}

}  // namespace
}  // namespace tessera
