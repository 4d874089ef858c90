// Optimizers in folders that PyTorch's DCP wrote from what get_state_dict gave it.
#include "checkpoint/dcp/dcp_optimizer.h"

#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_matchers.h"
#include "checkpoint/dcp/dcp_metadata.h"
#include "checkpoint/dcp/dcp_model.h"
#include "checkpoint/dcp/torch_tensor.h"
#include "checkpoint/safetensors/element_reader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/conformance/dcp/golden_folders.h"

namespace tessera::dcp {
namespace {

using testing::HasSubstr;
using testing_support::GoldenFolder;
using testing_support::ReadGoldenFolder;

absl::StatusOr<OptimizerState> Read(const std::string& folder, const std::string& prefix) {
  const absl::StatusOr<DcpModel> model = DcpModel::Open(folder);
  if (!model.ok()) return model.status();
  return ReadOptimizerState(folder, *model, prefix);
}

absl::StatusOr<OptimizerState> ReadGolden(const std::string& name,
                                          const std::string& prefix = "optim.") {
  return Read(ReadGoldenFolder(name).WriteOut(), prefix);
}

TEST(DcpOptimizerTest, EachParameterHasItsStepAndTheTensorsOfItsMoments) {
  for (const char* folder : {"adamw", "adamw_flattened"}) {
    SCOPED_TRACE(folder);
    ASSERT_OK_AND_ASSIGN(const OptimizerState state, ReadGolden(folder));
    ASSERT_EQ(state.parameters.size(), 4);
    int64_t step = 3;
    for (const std::string name : {"0.weight", "0.bias", "2.weight", "2.bias"}) {
      SCOPED_TRACE(name);
      EXPECT_EQ(state.parameters.at(name).step, step++);
      const std::map<std::string, std::string> expected = {
          {"exp_avg", absl::StrCat("optim.state.", name, ".exp_avg")},
          {"exp_avg_sq", absl::StrCat("optim.state.", name, ".exp_avg_sq")}};
      EXPECT_EQ(state.parameters.at(name).moments, expected);
    }
  }
}

TEST(DcpOptimizerTest, NumbersAreThoseOfTheParametersGroupFlattenedOrNot) {
  ASSERT_OK_AND_ASSIGN(const OptimizerState grouped, ReadGolden("adamw"));
  ASSERT_EQ(grouped.numbers.size(), 4);
  for (const std::string name : {"0.weight", "2.weight"}) {
    EXPECT_EQ(grouped.numbers.at(name)->at("lr"), (std::vector<double>{0.25}));
    EXPECT_EQ(grouped.numbers.at(name)->at("weight_decay"), (std::vector<double>{0.0625}));
  }
  for (const std::string name : {"0.bias", "2.bias"}) {
    EXPECT_EQ(grouped.numbers.at(name)->at("lr"), (std::vector<double>{0.5}));
    EXPECT_EQ(grouped.numbers.at(name)->at("betas"), (std::vector<double>{0.5, 0.75}));
    EXPECT_EQ(grouped.numbers.at(name)->at("weight_decay"), (std::vector<double>{0}));
    EXPECT_EQ(grouped.numbers.at(name)->at("amsgrad"), (std::vector<double>{0}));
    EXPECT_EQ(grouped.numbers.at(name)->count("foreach"), 0) << "it is None";
  }
  ASSERT_OK_AND_ASSIGN(const OptimizerState flattened, ReadGolden("adamw_flattened"));
  ASSERT_EQ(flattened.numbers.size(), 4);
  EXPECT_EQ(flattened.numbers.at("2.bias")->at("betas"), (std::vector<double>{0.9, 0.999}));
  EXPECT_EQ(flattened.numbers.at("0.weight")->at("weight_decay"), (std::vector<double>{0.5}));
}

TEST(DcpOptimizerTest, MomentThatIsNoneIsNotThereAndSgdHasNoSteps) {
  ASSERT_OK_AND_ASSIGN(const OptimizerState state, ReadGolden("sgd"));
  ASSERT_EQ(state.parameters.size(), 3);
  EXPECT_EQ(state.parameters.count("2.bias"), 0);
  for (const auto& [name, parameter] : state.parameters) {
    EXPECT_FALSE(parameter.step.has_value());
    EXPECT_EQ(parameter.moments.size(), 1);
  }
  EXPECT_EQ(state.numbers.at("2.bias")->at("momentum"), (std::vector<double>{0.5}));
}

TEST(DcpOptimizerTest, PrefixThatNothingHasIsNamed) {
  for (const char* folder : {"adamw", "nested"}) {
    EXPECT_THAT(ReadGolden(folder, "optimizer."),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("'optimizer.'")));
  }
}

// The folder as it is but for the bytes of one object, which get others of the same length.
std::string WithObjectReplaced(GoldenFolder folder, const std::string& from,
                               const std::string& to) {
  EXPECT_EQ(from.size(), to.size());
  for (auto& [name, bytes] : folder.files) {
    if (name != ".metadata") bytes = absl::StrReplaceAll(bytes, {{from, to}});
  }
  return folder.WriteOut();
}

// Loading the model skips the object; loading the optimizer reads it.
TEST(DcpOptimizerTest, ObjectThatNamesAFunctionIsRefusedByBothNames) {
  const GoldenFolder golden = ReadGoldenFolder("sgd");
  // The list ["0.weight", ...] begins so; in its place the name of a function comes up.
  const std::string list(
      "]q\0(X\x08\0\0\0"
      "0.weight",
      17);
  const std::string call = "cos\nsystem\n" + std::string(6, '.');
  const std::string folder = WithObjectReplaced(golden, list, call);
  EXPECT_THAT(Read(folder, "optim."),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       testing::AllOf(HasSubstr("'optim.param_groups.0.params'"),
                                      HasSubstr("'os.system'"))));
  EXPECT_OK(DcpModel::Open(folder));
}

TEST(DcpOptimizerTest, StepThatIsNoCountIsNamed) {
  const std::string name = "optim.state.0.bias.step";
  const std::string folder = ReadGoldenFolder("adamw").WriteOut();
  std::ifstream metadata(folder + "/.metadata", std::ios::binary);
  const std::string pickle((std::istreambuf_iterator<char>(metadata)), {});
  ASSERT_OK_AND_ASSIGN(const Metadata tensors, DecodeMetadata(pickle));
  const Chunk& chunk = tensors.at(name).chunks[0];
  const std::string path = absl::StrCat(folder, "/", chunk.file);
  ASSERT_OK_AND_ASSIGN(const OpenFile file, OpenRegularFile(path));
  ASSERT_OK_AND_ASSIGN(const TorchTensor step, LocateTorchTensor(file, chunk.item));
  const auto set_step = [&](float value) {
    std::fstream out(path, std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(step.storage.begin_bytes);
    out.write(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  for (const float value : {-1.0f, 0.5f, 1e20f, NAN, INFINITY}) {
    set_step(value);
    EXPECT_THAT(Read(folder, "optim."),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name)));
  }
  set_step(12);
  ASSERT_OK_AND_ASSIGN(const OptimizerState state, Read(folder, "optim."));
  EXPECT_EQ(state.parameters.at("0.bias").step, 12);
}

}  // namespace
}  // namespace tessera::dcp
