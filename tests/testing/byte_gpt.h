// The demo's model (tests/demo/gpt.h) without libtorch, for where that is not at hand: the same
// parameters under the same names, in fp32, and the same loss and gradients but for rounding.
//
//   ByteGptPass pass(config, windows);        of one batch
//   pass.Embed(root);
//   pass.ForwardBlock(0, block0); ...         each while the block's unit is open
//   loss = pass.Loss(root);
//   ... gradient = pass.BackwardBlock(0, block0);
//   root_gradient = pass.Finish();
#ifndef TESSERA_TESTS_TESTING_BYTE_GPT_H_
#define TESSERA_TESTS_TESTING_BYTE_GPT_H_

#include <cstdint>
#include <vector>

#include "layout/tensor_spec.h"
#include "tests/testing/byte_gpt_math.h"

namespace tessera::testing_support {

struct ByteGptConfig {
  int64_t width = 64;
  int64_t heads = 4;
  int64_t blocks = 2;
  int64_t context = 32;
};
inline constexpr int64_t kBytes = 256;  // The vocabulary.

// A unit's parameters, or their gradients, in the order of the model's spec.
using ByteGptUnit = std::vector<Floats>;

// The root, which has the embedding, and a unit for each block: unit 1 + i is block i.
ModelSpec ByteGptModel(const ByteGptConfig& config);
// Distributed as the demo's; the same for the same seed.
std::vector<ByteGptUnit> ByteGptInitialValues(const ByteGptConfig& config, uint64_t seed);

// Forward and backward of a batch, in this order. Thread-compatible.
class ByteGptPass {
 public:
  // `windows`: of context + 1 bytes each, one after the other.
  ByteGptPass(const ByteGptConfig& config, const std::vector<uint8_t>& windows);

  void Embed(const ByteGptUnit& root);
  void ForwardBlock(int64_t block, const ByteGptUnit& parameters);  // From the first to the last.
  // The mean cross-entropy of predicting each next byte; backward has started.
  double Loss(const ByteGptUnit& root);
  ByteGptUnit BackwardBlock(int64_t block, const ByteGptUnit& parameters);  // From the last.
  ByteGptUnit Finish();                                                     // The root's gradient.

 private:
  struct Saved {
    Normed norm1, norm2;
    Floats qkv, weights, mixed, up, gelu;
  };
  const ByteGptConfig config_;
  const AttentionShape shape_;
  std::vector<uint8_t> tokens_, targets_;  // [batch, context]
  Floats x_;                               // [batch, context, width]; then its gradient.
  std::vector<Saved> saved_;               // By block.
  ByteGptUnit root_gradient_;
};

}  // namespace tessera::testing_support

#endif  // TESSERA_TESTS_TESTING_BYTE_GPT_H_
