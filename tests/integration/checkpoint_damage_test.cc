// A checkpoint that is not what was saved is refused, by all ranks that load it and by `tessera
// verify`, and the error names the tensor that is lost. Every case begins with a whole copy, which
// is loaded at the end, so that nothing but the damage is refused.
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "checkpoint/manifest/checkpoint_folder.h"
#include "checkpoint/manifest/manifest.h"
#include "checkpoint/safetensors/file_io.h"
#include "checkpoint/safetensors/model_index.h"
#include "checkpoint/safetensors/safetensors_header.h"
#include "client/cli/cli.h"
#include "gtest/gtest.h"
#include "tessera/checkpoint.h"
#include "tessera/local_cluster.h"
#include "tests/testing/flip_bit.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing_support::ReadAll;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

namespace fs = std::filesystem;

// Two units whose tensors have the same shapes, so that files of one tensor have the same size.
ModelSpec TwoOfAKind() {
  ModelSpec model;
  for (const std::string name : {"unit0", "unit1"}) {
    UnitSpec unit = {name, {{name + ".weight", {7, 5}, DType::kFp32}}};
    unit.parameters.push_back({name + ".bias", {5}, DType::kFp32});
    unit.parameters.push_back({name + ".frozen", {3}, DType::kFp32, /*requires_grad=*/false});
    model.units.push_back(std::move(unit));
  }
  return model;
}

const CheckpointContents& Own() {
  static const auto& own = *new CheckpointContents{{{"bn.mean", DType::kFp32, {2}, "abcdefgh"}},
                                                   "where this trainer is in the data"};
  return own;
}

// The parameter: the bytes of tensors in a file of the model; 0: all are in one.
class CheckpointDamageTest : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    root_ = "/tmp/tessera-damage-XXXXXX";
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
    LocalCluster::Options options;
    options.num_devices = 3;
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
    SessionOptions job = ToyOptions(*cluster_, "job", 3);
    job.model = TwoOfAKind();
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(job));
    team_ = std::make_unique<TrainerTeam>(std::move(team));
    ASSERT_OK(team_->TrainTo(2));
    ASSERT_OK(Save("saved"));
    ASSERT_OK(team_->TrainTo(4));
    ASSERT_OK(Save("later"));
    ASSERT_OK_AND_ASSIGN(manifest_, ReadManifest(Path("saved")));
    at_step_4_ = Parameters();
    Restore();
  }
  // What was refused has changed nothing, and what was damaged can be loaded where it is whole.
  void TearDown() override {
    if (HasFatalFailure()) return;
    EXPECT_GT(num_refused_, 0);
    EXPECT_EQ(Parameters(), at_step_4_);
    EXPECT_EQ(team_->session(0)->next_step(), 5);
    Restore();
    EXPECT_OK(Load());
    EXPECT_EQ(Verify().exit_code, 0);
    EXPECT_EQ(team_->session(0)->next_step(), 3);
    team_.reset();
    cluster_.reset();
    fs::remove_all(root_);
  }

  std::string Path(const std::string& name) const { return absl::StrCat(root_, "/", name); }
  std::string InCheckpoint(const std::string& file) const { return Path("c/" + file); }
  void Restore() {
    fs::remove_all(Path("c"));
    fs::copy(Path("saved"), Path("c"));
  }
  absl::Status Save(const std::string& name) {
    SaveOptions options;
    options.max_file_bytes = GetParam();
    return team_->RunAll(
        [&](Session* session) { return SaveCheckpoint(session, Path(name), Own(), options); });
  }
  absl::Status LoadOn(Session* session) {
    LoadCheckpointOptions options;
    options.buffers = Own().buffers;
    return LoadCheckpoint(session, Path("c"), options).status();
  }
  absl::Status Load() {
    return team_->RunAll([&](Session* session) { return LoadOn(session); });
  }
  std::vector<float> Parameters() {
    std::vector<float> all;
    EXPECT_OK(team_->RunAll([&](Session* session) -> absl::Status {
      ASSIGN_OR_RETURN(std::vector<float> read, ReadAll(session));
      if (session->rank() == 0) all = std::move(read);
      return absl::OkStatus();
    }));
    return all;
  }

  struct Verified {
    int exit_code = 0;
    std::vector<std::string> damages;
  };
  Verified Verify() const {
    std::ostringstream out, err;
    Verified verified;
    verified.exit_code = cli::RunCli({"verify", Path("c")}, {&out, &err, false});
    if (verified.exit_code != 0)
      verified.damages = absl::StrSplit(out.str() + err.str(), '\n', absl::SkipEmpty());
    return verified;
  }

  // All ranks refuse it alike, and `verify` does. Each of `texts` is in the errors of both,
  // and one of `one_of`, if there are any.
  void ExpectRefused(const std::vector<std::string>& texts,
                     const std::vector<std::string>& one_of = {}) {
    ++num_refused_;
    const auto has_all = [&](absl::string_view line) {
      const auto has = [&](const std::string& text) { return absl::StrContains(line, text); };
      return std::all_of(texts.begin(), texts.end(), has) &&
             (one_of.empty() || std::any_of(one_of.begin(), one_of.end(), has));
    };
    for (const absl::Status& status :
         team_->Run([&](Session* session) { return LoadOn(session); })) {
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      EXPECT_TRUE(has_all(status.message())) << status;
    }
    const Verified verified = Verify();
    EXPECT_EQ(verified.exit_code, 1);
    EXPECT_TRUE(std::any_of(verified.damages.begin(), verified.damages.end(), has_all))
        << absl::StrJoin(verified.damages, "\n");
  }

  // The files that have tensors, and the layout of each.
  std::vector<std::string> TensorFiles(bool of_model_alone = false) const {
    std::vector<std::string> names;
    for (const auto& [name, file] : manifest_.files) {
      if (!file.tensors.empty() && (!of_model_alone || IsModelFileName(name)))
        names.push_back(name);
    }
    return names;
  }
  SafetensorsHeader HeaderOf(const std::string& file) const {
    const absl::StatusOr<std::string> bytes =
        ReadWholeFile(Path("saved/" + file), int64_t{1} << 20);
    EXPECT_OK(bytes.status());
    const absl::StatusOr<SafetensorsHeader> header = DecodeHeader(*bytes, bytes->size());
    EXPECT_OK(header.status());
    return *header;
  }
  // Of a file: any of its tensors, as an error says it. Errors name some, by name.
  std::string FirstTensorOf(const std::string& file) const {
    return absl::StrCat("'", manifest_.files.at(file).tensors.begin()->first, "'");
  }
  int64_t SizeOf(const std::string& file) const { return manifest_.files.at(file).size_bytes; }

  void FlipBit(const std::string& file, int64_t at, int bit) const {
    testing_support::FlipBit(InCheckpoint(file), at, bit);
  }

  std::string root_;
  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<TrainerTeam> team_;
  Manifest manifest_;
  std::vector<float> at_step_4_;
  int num_refused_ = 0;
};

INSTANTIATE_TEST_SUITE_P(OneFileOrSeveral, CheckpointDamageTest, testing::Values(0, 140),
                         [](const auto& info) { return info.param == 0 ? "One" : "Several"; });

TEST_P(CheckpointDamageTest, BitFlippedInAnyTensorIsRefusedByTheTensorsName) {
  std::mt19937 random(11);
  int num_tensors = 0;
  for (const std::string& file : TensorFiles()) {
    const SafetensorsHeader header = HeaderOf(file);
    for (const auto& [name, stored] : header.tensors) {
      ++num_tensors;
      const int64_t size_bytes = stored.end_bytes - stored.begin_bytes;
      const int64_t inside = random() % size_bytes;
      for (const int64_t in_tensor : {int64_t{0}, inside, size_bytes - 1}) {
        const int bit = random() % 8;
        SCOPED_TRACE(absl::StrCat(name, ": bit ", bit, " of byte ", in_tensor));
        const int64_t at = header.data_offset_bytes + stored.begin_bytes + in_tensor;
        FlipBit(file, at, bit);
        ExpectRefused({file, absl::StrCat("tensor '", name, "' is damaged")});
        EXPECT_EQ(Verify().damages.size(), 2) << "that one and how many they are, nothing else";
        FlipBit(file, at, bit);
      }
    }
  }
  EXPECT_EQ(num_tensors, 6 + 1 + 4 * 3) << "parameters, buffers, moments and counts of updates";
}

TEST_P(CheckpointDamageTest, BitFlippedAnywhereElseIsRefusedByTheFilesName) {
  std::mt19937 random(12);
  for (const auto& [file, expected] : manifest_.files) {
    const int64_t end =
        expected.tensors.empty() ? expected.size_bytes : HeaderOf(file).data_offset_bytes;
    for (int64_t at = 0; at < end; at += 1 + random() % 40) {
      const int bit = random() % 8;
      SCOPED_TRACE(absl::StrCat(file, ": bit ", bit, " of byte ", at));
      FlipBit(file, at, bit);
      ExpectRefused({file, expected.tensors.empty() ? "" : FirstTensorOf(file)});
      FlipBit(file, at, bit);
    }
  }
}

TEST_P(CheckpointDamageTest, FileThatEndsEarlyIsRefusedWithTheTensorThatItEndsIn) {
  const auto cut = [&](const std::string& file, int64_t size, const std::string& tensor) {
    SCOPED_TRACE(absl::StrCat(file, " of ", size, " bytes"));
    fs::resize_file(InCheckpoint(file), size);
    ExpectRefused({absl::StrCat(file, " has ", size, " bytes"), tensor});
    Restore();
  };
  for (const auto& [file, expected] : manifest_.files) {
    if (expected.tensors.empty()) {
      for (const int64_t size : {int64_t{0}, SizeOf(file) / 2, SizeOf(file) - 1})
        cut(file, size, "");
      continue;
    }
    const SafetensorsHeader header = HeaderOf(file);
    for (const int64_t size : {int64_t{0}, int64_t{5}, header.data_offset_bytes - 1})
      cut(file, size, FirstTensorOf(file));
    for (const auto& [name, stored] : header.tensors) {
      const int64_t begin = header.data_offset_bytes + stored.begin_bytes;
      const int64_t end = header.data_offset_bytes + stored.end_bytes;
      cut(file, begin, absl::StrCat("it ends before tensor '", name, "'"));
      cut(file, (begin + end) / 2, absl::StrCat("it ends within tensor '", name, "'"));
      cut(file, end - 1, absl::StrCat("it ends within tensor '", name, "'"));
    }
  }
}

TEST_P(CheckpointDamageTest, FileWithMoreBytesIsRefusedByName) {
  for (const auto& [file, expected] : manifest_.files) {
    SCOPED_TRACE(file);
    fs::resize_file(InCheckpoint(file), SizeOf(file) + 1);
    ExpectRefused({absl::StrCat(file, " has ", SizeOf(file) + 1, " bytes")});
    Restore();
  }
}

TEST_P(CheckpointDamageTest, MissingFileIsRefusedWithATensorThatLayThere) {
  for (const auto& [file, expected] : manifest_.files) {
    SCOPED_TRACE(file);
    fs::remove(InCheckpoint(file));
    ExpectRefused(
        {absl::StrCat(file, " is missing"), expected.tensors.empty() ? "" : FirstTensorOf(file)});
    fs::create_directory(InCheckpoint(file));
    ExpectRefused({file, expected.tensors.empty() ? "" : FirstTensorOf(file)});
    Restore();
  }
}

TEST_P(CheckpointDamageTest, CausesOfAllRanksThatFailAreTold) {
  FlipBit(TrainerFileName(1), 3, 5);
  fs::remove(InCheckpoint(TrainerFileName(2)));
  ++num_refused_;
  for (const absl::Status& status : team_->Run([&](Session* session) { return LoadOn(session); })) {
    EXPECT_EQ(status, absl::DataLossError(
                          absl::StrCat("load on rank 1: ", InCheckpoint(TrainerFileName(1)),
                                       " is damaged; rank 2: ", InCheckpoint(TrainerFileName(2)),
                                       " is missing from the checkpoint")));
  }
}

TEST_P(CheckpointDamageTest, FileOfAnotherStepIsRefusedWithTheTensorsThatChanged) {
  std::vector<std::string> all_changed;
  for (const std::string& file : TensorFiles()) {
    SCOPED_TRACE(file);
    fs::copy_file(Path("later/" + file), InCheckpoint(file), fs::copy_options::overwrite_existing);
    ASSERT_EQ(fs::file_size(InCheckpoint(file)), SizeOf(file)) << "of the same shapes";
    ASSERT_OK_AND_ASSIGN(const Manifest later, ReadManifest(Path("later")));
    std::vector<std::string> changed;
    for (const auto& [name, crc32] : manifest_.files.at(file).tensors) {
      if (later.files.at(file).tensors.at(name) != crc32)
        changed.push_back(absl::StrCat("tensor '", name, "' is damaged"));
    }
    // A file with nothing but what training leaves alone is the same at every step.
    if (changed.empty()) continue;
    ExpectRefused({file}, changed);
    EXPECT_EQ(Verify().damages.size(), changed.size() + 1) << "it names each of them";
    all_changed.insert(all_changed.end(), changed.begin(), changed.end());
    Restore();
  }
  EXPECT_EQ(all_changed.size(), 4 + 4 * 3) << "trained parameters, moments and counts";
  fs::copy_file(Path("later/manifest.json"), InCheckpoint("manifest.json"),
                fs::copy_options::overwrite_existing);
  ExpectRefused({}, all_changed);
}

TEST_P(CheckpointDamageTest, ManifestThatIsDamagedIsRefused) {
  const int64_t size_bytes = fs::file_size(InCheckpoint("manifest.json"));
  const auto expect_refused = [&] {
    ++num_refused_;
    for (const absl::Status& status :
         team_->Run([&](Session* session) { return LoadOn(session); })) {
      EXPECT_FALSE(status.ok());
      EXPECT_TRUE(absl::StrContains(status.message(), Path("c"))) << status;
    }
    EXPECT_EQ(Verify().exit_code, 1);
  };
  for (const int64_t size : {int64_t{0}, int64_t{1}, size_bytes / 2, size_bytes - 3}) {
    SCOPED_TRACE(absl::StrCat(size, " bytes"));
    fs::resize_file(InCheckpoint("manifest.json"), size);
    expect_refused();
    Restore();
  }
  std::mt19937 random(13);
  for (int i = 0; i < 40; ++i) {
    // Of blanks between members some bits make other blanks, which say the same.
    const int64_t at = random() % size_bytes;
    ASSERT_OK_AND_ASSIGN(const std::string text,
                         ReadWholeFile(InCheckpoint("manifest.json"), 1 << 20));
    if (text[at] == ' ' || text[at] == '\n') continue;
    SCOPED_TRACE(absl::StrCat("byte ", at));
    FlipBit("manifest.json", at, i % 7);
    expect_refused();
    Restore();
  }
}

class CheckpointOfSeveralFilesDamageTest : public CheckpointDamageTest {};

INSTANTIATE_TEST_SUITE_P(Several, CheckpointOfSeveralFilesDamageTest, testing::Values(140));

TEST_P(CheckpointOfSeveralFilesDamageTest, ExchangedFilesAreRefusedWithATensorThatOneHad) {
  const std::vector<std::string> files = TensorFiles(/*of_model_alone=*/true);
  ASSERT_GT(files.size(), 2);
  int num_of_one_size = 0;
  for (size_t a = 0; a < files.size(); ++a) {
    for (size_t b = a + 1; b < files.size(); ++b) {
      SCOPED_TRACE(absl::StrCat(files[a], " and ", files[b]));
      num_of_one_size += SizeOf(files[a]) == SizeOf(files[b]) ? 1 : 0;
      fs::rename(InCheckpoint(files[a]), InCheckpoint("between"));
      fs::rename(InCheckpoint(files[b]), InCheckpoint(files[a]));
      fs::rename(InCheckpoint("between"), InCheckpoint(files[b]));
      ExpectRefused({files[a], FirstTensorOf(files[a])});
      EXPECT_EQ(Verify().damages.size(), 3) << "both are named";
      Restore();
    }
  }
  EXPECT_GT(num_of_one_size, 0) << "also where no size tells them apart";
}

TEST_P(CheckpointOfSeveralFilesDamageTest, IndexOfOtherFilesIsRefusedWithATensorInAWrongPlace) {
  // One of the same size, in which two files are exchanged; one of another split of the model.
  ASSERT_OK_AND_ASSIGN(const std::string text,
                       ReadWholeFile(InCheckpoint(kModelIndexName), kMaxIndexBytes));
  ASSERT_OK_AND_ASSIGN(ModelIndex index, DecodeModelIndex(text));
  const auto write = [&](const ModelIndex& stale) {
    std::ofstream(InCheckpoint(kModelIndexName), std::ios::trunc) << EncodeModelIndex(stale);
  };
  ModelIndex exchanged = index;
  std::swap(exchanged.file_of.at("unit0.weight"), exchanged.file_of.at("unit1.weight"));
  ASSERT_NE(exchanged.file_of, index.file_of);
  write(exchanged);
  ASSERT_EQ(fs::file_size(InCheckpoint(kModelIndexName)), text.size());
  ExpectRefused({kModelIndexName, "is damaged; it has tensor 'unit0.weight' in "});
  Restore();

  ModelIndex of_fewer = index;
  of_fewer.file_of.erase("unit1.frozen");
  write(of_fewer);
  ExpectRefused({kModelIndexName, "it lacks tensor 'unit1.frozen', which is in model-0000"});
  Restore();

  for (auto& [tensor, file] : index.file_of) file = "model-00001-of-00001.safetensors";
  write(index);
  ExpectRefused({kModelIndexName, "it has tensor 'unit"});
}

}  // namespace
}  // namespace tessera
