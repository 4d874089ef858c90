// Models that jobs have saved, as Python's packages load them: safetensors, PyTorch and
// transformers, each where it is installed. tools/setup installs the first, tools/setup
// --with-peers all of them.
#include <stdlib.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tessera/checkpoint.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tessera/stored_model.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing_support::ToyOptions;
using testing_support::TrainerTeam;

constexpr char kScript[] = "tests/conformance/readers/read.py";
constexpr int kSkipped = 77;  // What the script ends with where a package is not installed.
constexpr int64_t kWidth = 16, kVocabulary = 32, kHidden = 24, kLength = 8;
constexpr int kBlocks = 2;

struct Model {
  std::string name;
  nlohmann::json config;  // As transformers has it.
  ModelSpec spec;
};

TensorSpec Parameter(const std::string& name, std::vector<int64_t> shape) {
  return {name, std::move(shape), DType::kFp32};
}

// The output's weights, which are the embedding's. One tensor in the file, under the first name.
TensorSpec Tied(const std::string& name, const TensorSpec& primary) {
  TensorSpec tied = primary;
  tied.name = name;
  tied.shared_with = primary.name;
  return tied;
}

Model Llama() {
  Model model = {"llama",
                 {{"architectures", nlohmann::json::array({"LlamaForCausalLM"})},
                  {"model_type", "llama"},
                  {"hidden_size", kWidth},
                  {"intermediate_size", kHidden},
                  {"num_attention_heads", 2},
                  {"num_key_value_heads", 1},
                  {"num_hidden_layers", kBlocks},
                  {"vocab_size", kVocabulary},
                  {"max_position_embeddings", kLength},
                  {"tie_word_embeddings", true}},
                 {}};
  const TensorSpec embedding = Parameter("model.embed_tokens.weight", {kVocabulary, kWidth});
  model.spec.units.push_back(
      {"root",
       {embedding, Parameter("model.norm.weight", {kWidth}), Tied("lm_head.weight", embedding)}});
  for (int i = 0; i < kBlocks; ++i) {
    const std::string block = absl::StrCat("model.layers.", i, ".");
    const std::string attention = block + "self_attn.", mlp = block + "mlp.";
    model.spec.units.push_back({absl::StrCat("block", i),
                                {Parameter(block + "input_layernorm.weight", {kWidth}),
                                 Parameter(attention + "q_proj.weight", {kWidth, kWidth}),
                                 Parameter(attention + "k_proj.weight", {kWidth / 2, kWidth}),
                                 Parameter(attention + "v_proj.weight", {kWidth / 2, kWidth}),
                                 Parameter(attention + "o_proj.weight", {kWidth, kWidth}),
                                 Parameter(block + "post_attention_layernorm.weight", {kWidth}),
                                 Parameter(mlp + "gate_proj.weight", {kHidden, kWidth}),
                                 Parameter(mlp + "up_proj.weight", {kHidden, kWidth}),
                                 Parameter(mlp + "down_proj.weight", {kWidth, kHidden})}});
  }
  return model;
}

Model Gpt2() {
  Model model = {"gpt2",
                 {{"architectures", nlohmann::json::array({"GPT2LMHeadModel"})},
                  {"model_type", "gpt2"},
                  {"n_embd", kWidth},
                  {"n_head", 2},
                  {"n_layer", kBlocks},
                  {"n_positions", kLength},
                  {"vocab_size", kVocabulary},
                  {"tie_word_embeddings", true}},
                 {}};
  const TensorSpec embedding = Parameter("transformer.wte.weight", {kVocabulary, kWidth});
  model.spec.units.push_back(
      {"root",
       {embedding, Parameter("transformer.wpe.weight", {kLength, kWidth}),
        Parameter("transformer.ln_f.weight", {kWidth}),
        Parameter("transformer.ln_f.bias", {kWidth}), Tied("lm_head.weight", embedding)}});
  for (int i = 0; i < kBlocks; ++i) {
    UnitSpec& unit = model.spec.units.emplace_back();
    unit.name = absl::StrCat("block", i);
    const std::string block = absl::StrCat("transformer.h.", i, ".");
    const auto add = [&](const std::string& layer, std::vector<int64_t> weight, int64_t bias) {
      unit.parameters.push_back(Parameter(absl::StrCat(block, layer, ".weight"), weight));
      unit.parameters.push_back(Parameter(absl::StrCat(block, layer, ".bias"), {bias}));
    };
    add("ln_1", {kWidth}, kWidth);
    add("attn.c_attn", {kWidth, 3 * kWidth}, 3 * kWidth);
    add("attn.c_proj", {kWidth, kWidth}, kWidth);
    add("ln_2", {kWidth}, kWidth);
    add("mlp.c_fc", {kWidth, 4 * kWidth}, 4 * kWidth);
    add("mlp.c_proj", {4 * kWidth, kWidth}, kWidth);
  }
  return model;
}

// Compares what the trainers read of their parameters with what they write into files.
absl::Status WriteExpected(Session* session, const std::string& folder) {
  nlohmann::json tensors = nlohmann::json::array();
  std::string bytes;
  for (int unit = 0; unit < session->num_units(); ++unit) {
    const auto& parameters = session->layout().units[unit].flat.parameters();
    RETURN_IF_ERROR(session->ReadParameters(unit, [&](int p, ConstValues values) {
      tensors.push_back({{"name", parameters[p].spec.name}, {"shape", parameters[p].spec.shape}});
      bytes.append(static_cast<const char*>(values.data()), values.size_bytes());
    }));
  }
  if (session->rank() != 0) return absl::OkStatus();
  std::ofstream(folder + "/expected.json") << tensors;
  std::ofstream(folder + "/expected.bin", std::ios::binary) << bytes;
  return absl::OkStatus();
}

absl::Status Export(Session* session, const std::string& folder) {
  RETURN_IF_ERROR(WriteExpected(session, folder));
  RETURN_IF_ERROR(SaveModel(session, folder + "/single/model.safetensors"));
  SaveOptions options;
  options.max_file_bytes = 6000;
  RETURN_IF_ERROR(SaveModel(session, folder + "/sharded", options));
  options.dtype = DType::kFp16;
  RETURN_IF_ERROR(SaveModel(session, folder + "/half", options));
  options.max_file_bytes = 0;
  options.dtype = DType::kBf16;
  RETURN_IF_ERROR(SaveModel(session, folder + "/brain/model.safetensors", options));
  return SaveCheckpoint(session, folder + "/checkpoint", {});
}

absl::Status ExportAll(const std::string& folder) {
  LocalCluster::Options cluster_options;
  cluster_options.num_devices = 8;
  ASSIGN_OR_RETURN(const std::unique_ptr<LocalCluster> cluster,
                   LocalCluster::Start(cluster_options));
  for (const Model& model : {Llama(), Gpt2()}) {
    const std::string into = absl::StrCat(folder, "/", model.name);
    for (const char* variant : {"single", "brain"})
      std::filesystem::create_directories(absl::StrCat(into, "/", variant));
    SessionOptions options = ToyOptions(*cluster, model.name, /*world_size=*/3);
    options.model = model.spec;
    ASSIGN_OR_RETURN(TrainerTeam team, TrainerTeam::Open(options));
    RETURN_IF_ERROR(team.TrainTo(2));
    RETURN_IF_ERROR(team.RunAll([&](Session* session) { return Export(session, into); }));
    for (const char* variant : {"single", "sharded", "checkpoint", "half", "brain"})
      std::ofstream(absl::StrCat(into, "/", variant, "/config.json")) << model.config;
  }
  return absl::OkStatus();
}

struct Ended {
  int exit_code = -1;
  std::string output;
};

Ended RunCommand(const std::string& command) {
  Ended ended;
  FILE* pipe = popen(absl::StrCat(command, " 2>&1").c_str(), "r");
  if (pipe == nullptr) return ended;
  char piece[4096];
  while (const size_t size = fread(piece, 1, sizeof(piece), pipe)) ended.output.append(piece, size);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) ended.exit_code = WEXITSTATUS(status);
  return ended;
}

// Where packages may be: what --test_env=TESSERA_TEST_PYTHON=... says, and no other then; or what
// tools/setup installed in this source tree, and the system's.
std::vector<std::string> Interpreters() {
  if (const char* chosen = getenv("TESSERA_TEST_PYTHON"); chosen != nullptr) return {chosen};
  // The script is a link to the one in the source tree.
  const std::filesystem::path tree =
      std::filesystem::canonical(kScript).parent_path().parent_path().parent_path().parent_path();
  std::vector<std::string> found;
  for (const char* venv : {"bench-peers", "readers"}) {
    const std::filesystem::path python = tree / ".cache" / venv / "venv/bin/python";
    if (std::filesystem::exists(python)) found.push_back(python);
  }
  found.push_back("python3");
  return found;
}

class PythonReadersTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new std::string(testing::TempDir() + "/readers-XXXXXX");
    ASSERT_NE(mkdtemp(folder_->data()), nullptr);
    ASSERT_OK(ExportAll(*folder_));
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(*folder_); }

  static void ExpectReads(absl::string_view package) {
    std::string lacking;
    for (const std::string& python : Interpreters()) {
      const Ended ended = RunCommand(
          absl::StrCat("'", python, "' -B ", kScript, " ", package, " '", *folder_, "'"));
      if (ended.exit_code == kSkipped) {
        lacking += ended.output;
        continue;
      }
      EXPECT_EQ(ended.exit_code, 0) << python << ": " << ended.output;
      return;
    }
    GTEST_SKIP() << "not installed: " << lacking;
  }

  static std::string* folder_;
};

std::string* PythonReadersTest::folder_ = nullptr;

TEST_F(PythonReadersTest, SafetensorsReadsEveryFileToTheBit) { ExpectReads("safetensors"); }

TEST_F(PythonReadersTest, TorchLoadsEveryExportIntoAModuleToTheBit) { ExpectReads("torch"); }

TEST_F(PythonReadersTest, TransformersLoadsEveryExportAsAModelToTheBit) {
  ExpectReads("transformers");
}

}  // namespace
}  // namespace tessera
