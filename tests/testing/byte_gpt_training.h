// Trains byte_gpt.h as the demo trains its model, with a session on whatever device the rank has:
// the root's window stays open, a block's is open in its forward and in its backward, AdamW with
// decay, clipping, and the demo's windows and learning rates.
//
// Forward and backward run on the CPU wherever the rank is: they are given what the windows
// show, and their gradients go to the device. So a loss is a function of the parameters' bits, and
// equal bits give equal losses.
#ifndef TESSERA_TESTS_TESTING_BYTE_GPT_TRAINING_H_
#define TESSERA_TESTS_TESTING_BYTE_GPT_TRAINING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tests/testing/byte_gpt.h"
#include "worker/device/rank_device.h"

namespace tessera::testing_support {

struct ByteGptTraining {
  ByteGptConfig model;
  int64_t steps = 24;
  int batch = 2;  // Windows a rank and step.
  uint64_t seed = 1;
  double learning_rate = 4e-3;
  std::string text;
};

// So many bytes of words that a seeded generator draws from a few, with a stop here and there.
std::string WordsOf(uint64_t seed, int64_t size_bytes);

// What a rank needs to attach to the cluster: the model, and how the demo trains it.
SessionOptions ByteGptOptions(const LocalCluster& cluster, const std::string& job_id,
                              int world_size, const ByteGptTraining& training);

// From the job's initial values, or from where it is, to the last step, recovering from failures.
// Returns this rank's loss in each step that it did, and NaN before those.
// Errors: those of the session and the device
absl::StatusOr<std::vector<double>> TrainByteGptOn(Session* session, RankDevice* device,
                                                   const ByteGptTraining& training);

}  // namespace tessera::testing_support

#endif  // TESSERA_TESTS_TESTING_BYTE_GPT_TRAINING_H_
