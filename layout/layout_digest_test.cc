#include "layout/layout_digest.h"

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "layout/reference_layout.h"

namespace tessera {
namespace {

struct Inputs {
  ModelSpec model;
  LayoutOptions options;
  int64_t world_size = 4;
};

Inputs BaseInputs() {
  Inputs inputs;
  inputs.model.units.push_back({"root", {MakeSpec("embed", {12, 8}), MakeSpec("head", {12, 8})}});
  inputs.model.units[0].parameters[1].shared_with = "embed";
  inputs.model.units.push_back({"block", {MakeSpec("w", {8, 8}), MakeSpec("b", {8})}});
  return inputs;
}

uint64_t DigestOf(const Inputs& inputs) {
  return LayoutDigest(ModelLayout::Create(inputs.model, inputs.options, inputs.world_size).value());
}

// Ranks of different builds and machines compare it, so it is fixed for good.
TEST(LayoutDigestTest, GoldenValueNeverChanges) {
  EXPECT_EQ(DigestOf(BaseInputs()), 10690315232497042172u);
}

TEST(LayoutDigestTest, EqualInputsGiveEqualDigests) {
  EXPECT_EQ(DigestOf(BaseInputs()), DigestOf(BaseInputs()));
}

TEST(LayoutDigestTest, AnyChangeChangesIt) {
  const std::vector<std::pair<std::string, std::function<void(Inputs*)>>> changes = {
      {"world size", [](Inputs* i) { i->world_size = 5; }},
      {"parameter alignment", [](Inputs* i) { i->options.parameter_alignment_bytes = 32; }},
      {"shard alignment", [](Inputs* i) { i->options.shard_alignment_bytes = 64; }},
      {"no shard alignment", [](Inputs* i) { i->options.shard_alignment_bytes = 0; }},
      {"alignment dtype", [](Inputs* i) { i->options.alignment_dtype = DType::kBf16; }},
      {"unit name", [](Inputs* i) { i->model.units[1].name = "blocl"; }},
      {"parameter name", [](Inputs* i) { i->model.units[1].parameters[1].name = "c"; }},
      {"longer name",
       [](Inputs* i) { i->model.units[1].parameters[1].name = std::string("b\0", 2); }},
      {"transposed shape",
       [](Inputs* i) {
         i->model.units[1].parameters[0].shape = {4, 16};
       }},
      {"one more dimension",
       [](Inputs* i) {
         i->model.units[1].parameters[1].shape = {8, 1};
       }},
      {"requires_grad", [](Inputs* i) { i->model.units[1].parameters[1].requires_grad = false; }},
      {"dtype",
       [](Inputs* i) {
         for (TensorSpec& spec : i->model.units[1].parameters) spec.dtype = DType::kBf16;
       }},
      {"no sharing", [](Inputs* i) { i->model.units[0].parameters[1].shared_with.clear(); }},
      {"alias name", [](Inputs* i) { i->model.units[0].parameters[1].name = "tail"; }},
      {"no alias", [](Inputs* i) { i->model.units[0].parameters.pop_back(); }},
      {"order of parameters",
       [](Inputs* i) {
         std::swap(i->model.units[1].parameters[0], i->model.units[1].parameters[1]);
       }},
      {"order of units", [](Inputs* i) { std::swap(i->model.units[0], i->model.units[1]); }},
      {"no unit", [](Inputs* i) { i->model.units.pop_back(); }},
      {"empty parameter",
       [](Inputs* i) { i->model.units[1].parameters.push_back(MakeSpec("e", {0})); }},
      {"parameter in another unit",
       [](Inputs* i) {
         i->model.units[0].parameters.push_back(i->model.units[1].parameters.back());
         i->model.units[1].parameters.pop_back();
       }},
      {"buffer",
       [](Inputs* i) {
         i->model.buffers = {{"m", StoredDType::kF32, {4}}};
       }},
      {"its name",
       [](Inputs* i) {
         i->model.buffers = {{"n", StoredDType::kF32, {4}}};
       }},
      {"its dtype",
       [](Inputs* i) {
         i->model.buffers = {{"m", StoredDType::kI32, {4}}};
       }},
      {"its shape",
       [](Inputs* i) {
         i->model.buffers = {{"m", StoredDType::kF32, {4, 1}}};
       }},
      {"another one",
       [](Inputs* i) {
         i->model.buffers = {{"m", StoredDType::kF32, {4}}, {"n", StoredDType::kF32, {4}}};
       }},
  };
  std::set<uint64_t> seen = {DigestOf(BaseInputs())};
  for (const auto& [what, change] : changes) {
    Inputs inputs = BaseInputs();
    change(&inputs);
    EXPECT_TRUE(seen.insert(DigestOf(inputs)).second) << what;
  }
}

// Which of two primaries an alias means is part of the layout, though no offset shows it.
TEST(LayoutDigestTest, PrimaryOfAnAliasCounts) {
  Inputs inputs = BaseInputs();
  inputs.model.units[0].parameters.insert(inputs.model.units[0].parameters.begin(),
                                          MakeSpec("other", {12, 8}));
  const uint64_t of_embed = DigestOf(inputs);
  inputs.model.units[0].parameters[2].shared_with = "other";
  EXPECT_NE(DigestOf(inputs), of_embed);
}

}  // namespace
}  // namespace tessera
