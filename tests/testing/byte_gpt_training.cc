#include "tests/testing/byte_gpt_training.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/status_macros.h"
#include "tests/demo/schedule.h"
#include "tests/demo/text.h"
#include "tests/testing/gpu_training.h"

namespace tessera::testing_support {
namespace {

std::vector<uint8_t> WindowsOf(const ByteGptTraining& training, int64_t step, int rank) {
  const int64_t length = training.model.context + 1;
  std::vector<uint8_t> windows;
  for (const int64_t start : demo::WindowStarts(training.seed, step, rank, training.batch, length,
                                                static_cast<int64_t>(training.text.size()))) {
    windows.insert(windows.end(), training.text.begin() + start,
                   training.text.begin() + start + length);
  }
  return windows;
}

absl::Status Initialize(Session* session, const ByteGptTraining& training) {
  if (session->initialized()) return absl::OkStatus();
  const auto values = ByteGptInitialValues(training.model, training.seed);
  return session->Initialize([&](int unit, int parameter, Values to) {
    const Floats& from = values[unit][parameter];
    std::copy(from.begin(), from.end(), to.as<float>().begin());
  });
}

absl::Status Step(Session* session, RankDevice* device, const ByteGptTraining& training,
                  int64_t step, double* loss) {
  ByteGptPass pass(training.model, WindowsOf(training, step, session->rank()));
  const int num_blocks = session->num_units() - 1;
  RETURN_IF_ERROR(session->Unshard(0));
  ASSIGN_OR_RETURN(const ByteGptUnit root, ReadWindow(session, device, 0));
  pass.Embed(root);
  for (int block = 0; block < num_blocks; ++block) {
    RETURN_IF_ERROR(session->Unshard(1 + block));
    ASSIGN_OR_RETURN(const ByteGptUnit parameters, ReadWindow(session, device, 1 + block));
    pass.ForwardBlock(block, parameters);
    RETURN_IF_ERROR(session->Reshard(1 + block));
  }
  *loss = pass.Loss(root);
  for (int block = num_blocks; block-- > 0;) {
    RETURN_IF_ERROR(session->Unshard(1 + block));
    ASSIGN_OR_RETURN(const ByteGptUnit parameters, ReadWindow(session, device, 1 + block));
    const ByteGptUnit gradient = pass.BackwardBlock(block, parameters);
    RETURN_IF_ERROR(session->Reshard(1 + block));
    RETURN_IF_ERROR(AddAndReduce(session, device, 1 + block, gradient));
  }
  RETURN_IF_ERROR(AddAndReduce(session, device, 0, pass.Finish()));
  return session->Step(demo::LearningRateScale(step, training.steps)).status();
}

}  // namespace

std::string WordsOf(uint64_t seed, int64_t size_bytes) {
  static const char* const kWords[] = {"a",     "the",  "of",    "and",  "ranks", "train",
                                       "model", "step", "shard", "have", "their", "gather"};
  constexpr uint64_t kNumWords = sizeof(kWords) / sizeof(kWords[0]);
  std::mt19937_64 random(seed);
  std::string text;
  while (static_cast<int64_t>(text.size()) < size_bytes) {
    text += kWords[random() % kNumWords];
    text += random() % 8 == 0 ? ".\n" : " ";
  }
  text.resize(size_bytes);
  return text;
}

SessionOptions ByteGptOptions(const LocalCluster& cluster, const std::string& job_id,
                              int world_size, const ByteGptTraining& training) {
  SessionOptions options;
  options.coordinator_address = cluster.coordinator_address();
  options.worker_address = cluster.worker_address();
  options.job_id = job_id;
  options.model = ByteGptModel(training.model);
  options.config.world_size = world_size;
  options.config.max_gradient_norm = 1.0;
  options.config.groups[0].learning_rate = training.learning_rate;
  options.config.groups[0].weight_decay = 0.1;
  return options;
}

absl::StatusOr<std::vector<double>> TrainByteGptOn(Session* session, RankDevice* device,
                                                   const ByteGptTraining& training) {
  std::vector<double> losses(training.steps, NAN);
  while (true) {
    absl::Status status = Initialize(session, training);
    while (status.ok() && session->next_step() <= training.steps) {
      const int64_t step = session->next_step();
      status = session->RunStep(
          [&] { return Step(session, device, training, step, &losses[step - 1]); });
    }
    if (status.ok()) return losses;
    if (!absl::IsAborted(status)) return status;
    RETURN_IF_ERROR(session->Recover());
  }
}

}  // namespace tessera::testing_support
