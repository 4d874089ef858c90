// What the snippets of the guides use without declaring it. A snippet is compiled as a method of a
// class that derives from GuideScope; see snippets_to_cc.py.
#ifndef TESSERA_TESTS_SNIPPETS_GUIDE_SCOPE_H_
#define TESSERA_TESTS_SNIPPETS_GUIDE_SCOPE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tessera/checkpoint.h"
#include "tessera/gradient_scaler.h"
#include "tessera/hand_over.h"
#include "tessera/in_process_executor.h"
#include "tessera/live_map.h"
#include "tessera/live_reader.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tessera/session_options.h"
#include "tessera/stored_model.h"
#include "tessera/torch/activations.h"
#include "tessera/torch/attach_options.h"
#include "tessera/torch/live_module.h"
#include "tessera/torch/model_checkpoint.h"
#include "tessera/torch/optim_state_dicts.h"
#include "tessera/torch/shard_optimizer.h"
#include "tessera/torch/sharded_model.h"
#include "tessera/torch/state_dicts.h"

namespace tessera_snippets {

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width = 4) {}
  torch::Tensor forward(torch::Tensor x, torch::Tensor mask = {}) { return x; }
};

struct EncoderImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor images) { return images; }
  torch::Tensor features(torch::Tensor images) { return images; }
};

struct ModelImpl : torch::nn::Module {
  ModelImpl(int num_blocks, int64_t width) {}
  torch::Tensor forward(torch::Tensor batch) { return batch; }
  std::vector<std::shared_ptr<tessera::Sharded<BlockImpl>>> blocks;
};

// Snippets are compiled and linked, and not run.
struct GuideScope {
  tessera::SessionOptions options;
  int rank = 0, world_size = 1;
  int64_t step = 1, steps = 1;
  std::shared_ptr<tessera::Sharded<ModelImpl>> model;
  std::unique_ptr<tessera::ShardedModel> sharded;
  absl::StatusOr<std::unique_ptr<tessera::ShardOptimizer>> own;

  std::shared_ptr<tessera::Sharded<EncoderImpl>> encoder;
  std::shared_ptr<tessera::Sharded<BlockImpl>> block, first, second;
  torch::Tensor batch, first_batch, second_batch, images, features, x, mask;
  std::string my_position_in_the_data, position;

  torch::Tensor NextBatch(int64_t step) { return batch; }
  torch::Tensor Loss(const torch::Tensor& batch) { return batch; }
  double schedule(int64_t step) { return 1; }
  std::string PositionBehind(int64_t step) { return position; }
  double NormOf(absl::Span<const tessera::MappedEntry> entries) { return 0; }
};

// Of the documents, as snippets_to_cc.py found them.
int NumSnippets();

}  // namespace tessera_snippets

#endif  // TESSERA_TESTS_SNIPPETS_GUIDE_SCOPE_H_
