#include "checkpoint/parts/consolidate.h"

#include <stdlib.h>

#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "checkpoint/manifest/checkpoint_folder.h"
#include "checkpoint/manifest/verify_checkpoint.h"
#include "checkpoint/parts/checkpoint_part.h"
#include "checkpoint/safetensors/crc32.h"
#include "checkpoint/safetensors/file_io.h"
#include "checkpoint/safetensors/model_file.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

// Two ranks' parts of a parameter "w" of [2, 4], its moment, and rank 0's step and buffer "b".
class ConsolidateTest : public testing::Test {
 protected:
  struct Part {
    Manifest manifest;
    PartContents contents;
    std::map<std::string, std::string> bytes;  // By slice.
    std::string own;
  };

  void SetUp() override {
    DisarmAllFaultPoints();
    root_ = "/tmp/tessera-parts-XXXXXX";
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
    for (int rank = 0; rank < 2; ++rank) {
      Part& part = parts_.emplace_back();
      part.manifest.job_id = "gpt";
      part.manifest.step = 7;
      part.manifest.world_size = 2;
      part.manifest.optimizer = "sgd";
      part.manifest.part = ManifestPart{rank, "save"};
      part.own = absl::StrCat("own bytes of ", rank);
      const std::string values = rank == 0 ? "aaaabbbbccccdddd" : "eeeeffffgggghhhh";
      Add(&part, {PartFile::kModel, "w", kWhole, 4 * rank, 4}, values);
      Add(&part, {PartFile::kOptimizer, "state.w.momentum_buffer", kWhole, 4 * rank, 4}, values);
    }
    const TensorInfo step = {StoredDType::kF32, {}}, buffer = {StoredDType::kBool, {3}};
    Add(&parts_[0], {PartFile::kOptimizer, "state.w.step", step, 0, 1}, "\1\2\3\4");
    Add(&parts_[0], {PartFile::kModel, "b", buffer, 0, 3}, "\1\1\1");
    parts_[0].contents.whole.emplace(
        WholeFile{{{"w", kWhole}, {"b", buffer}}, {{"format", "pt"}, {"tied", "w"}}},
        WholeFile{{{"state.w.momentum_buffer", kWhole}, {"state.w.step", step}},
                  {{"format", "pt"}}});
  }
  void TearDown() override {
    DisarmAllFaultPoints();
    std::filesystem::remove_all(root_);
  }

  static void Add(Part* part, const PartSlice& slice, const std::string& bytes) {
    part->contents.slices[NameOf(slice)] = slice;
    part->bytes[NameOf(slice)] = bytes;
  }
  std::string Path(const std::string& name) const { return absl::StrCat(root_, "/", name); }
  void Write(const Part& part, const std::string& folder) {
    std::filesystem::create_directories(folder);
    ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header, PlacePart(part.contents));
    const std::string shard = absl::StrCat(folder, "/", kPartFileName);
    ASSERT_OK(ModelFile::Create(shard, header));
    ASSERT_OK_AND_ASSIGN(ModelFile file, ModelFile::Open(shard, header));
    Manifest manifest = part.manifest;
    ManifestFile& listed = manifest.files[std::string(kPartFileName)];
    listed = {header.file_bytes, Crc32(EncodeHeader(header)), {}};
    for (const auto& [name, bytes] : part.bytes) {
      ASSERT_OK(file.WriteBytes(name, bytes));
      listed.tensors[name] = Crc32(bytes);
    }
    ASSERT_OK(ModelFile::Publish(shard));
    const std::string own = TrainerFileName(part.manifest.part->rank);
    ASSERT_OK(WriteWholeFile(absl::StrCat(folder, "/", own), part.own));
    manifest.files[own] = {static_cast<int64_t>(part.own.size()), Crc32(part.own), {}};
    ASSERT_OK(
        WriteWholeFile(absl::StrCat(folder, "/", kPartManifestName), EncodeManifest(manifest)));
  }
  void WriteAll() {
    std::filesystem::remove_all(Path("p"));
    for (const Part& part : parts_)
      Write(part, Path(absl::StrCat("p/", PartFolderName(part.manifest.part->rank))));
  }
  absl::Status Run(const std::vector<std::string>& folders = {},
                   const ConsolidateOptions& options = {}) {
    return Consolidate(folders.empty() ? std::vector<std::string>{Path("p")} : folders, Path("out"),
                       options)
        .status();
  }
  // That of parts of which one is changed.
  absl::Status RunWith(const std::function<void(Part* zero, Part* one)>& change) {
    const std::vector<Part> before = parts_;
    change(&parts_[0], &parts_[1]);
    WriteAll();
    parts_ = before;
    const absl::Status status = Run();
    EXPECT_FALSE(std::filesystem::exists(Path("out")));
    EXPECT_FALSE(std::filesystem::exists(Path("out.partial")));
    return status;
  }

  const TensorInfo kWhole = {StoredDType::kF32, {2, 4}};
  std::string root_;
  std::vector<Part> parts_;
};

TEST_F(ConsolidateTest, PartsBecomeACheckpointThatIsWhole) {
  WriteAll();
  int64_t done = 0, all = 0;
  ConsolidateOptions options;
  options.progress = [&](int64_t done_bytes, int64_t all_bytes) {
    EXPECT_GE(done_bytes, done);
    done = done_bytes;
    all = all_bytes;
  };
  ASSERT_OK(Run({}, options));
  EXPECT_EQ(done, all);
  ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(Path("out")));
  EXPECT_THAT(verified.damages, IsEmpty());
  EXPECT_EQ(verified.manifest.step, 7);
  EXPECT_EQ(verified.manifest.files.size(), 4);
  ASSERT_OK_AND_ASSIGN(const std::string model,
                       ReadWholeFile(Path("out/model.safetensors"), 1 << 20));
  EXPECT_THAT(model, HasSubstr("aaaabbbbccccddddeeeeffffgggghhhh\1\1\1"));
  EXPECT_THAT(model, HasSubstr("\"tied\":\"w\""));
  ASSERT_OK_AND_ASSIGN(const std::string own, ReadWholeFile(Path("out/trainer-00001.bin"), 100));
  EXPECT_EQ(own, "own bytes of 1");
}

TEST_F(ConsolidateTest, PartsMayLieAnywhereAndBeGivenTwice) {
  Write(parts_[0], Path("host-a/rank-00000"));
  Write(parts_[1], Path("elsewhere"));
  Write(parts_[1], Path("copies/rank-00001"));
  ASSERT_OK(Run({Path("host-a"), Path("elsewhere"), Path("copies")}));
  Part& one = parts_[1];
  one.own = "others";
  Write(one, Path("copies/rank-00001"));
  EXPECT_THAT(Run({Path("host-a"), Path("elsewhere"), Path("copies")}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("both of rank 1 and not the same")));
}

TEST_F(ConsolidateTest, HolesOverlapsStrangersAndOtherShapesAreRefusedByName) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(RunWith([&](Part*, Part* one) {
                Add(one, {PartFile::kModel, "w", kWhole, 5, 3}, "ffffgggghhhh");
              }),
              StatusIs(kInvalid, HasSubstr("'model/w': elements [4, 5) are nowhere")));
  EXPECT_THAT(RunWith([&](Part*, Part* one) {
                Add(one, {PartFile::kModel, "w", kWhole, 3, 5}, "ddddeeeeffffgggghhhh");
              }),
              StatusIs(kInvalid, AllOf(HasSubstr("'model/w': elements [3, 4)"),
                                       HasSubstr("rank-00000"), HasSubstr("rank-00001"))));
  EXPECT_THAT(RunWith([&](Part* zero, Part*) {
                zero->contents.slices.erase("model/b");
                zero->bytes.erase("model/b");
              }),
              StatusIs(kInvalid, HasSubstr("'model/b': elements [0, 3) are nowhere")));
  EXPECT_THAT(RunWith([&](Part*, Part* one) {
                Add(one, {PartFile::kModel, "v", kWhole, 0, 1}, "aaaa");
              }),
              StatusIs(kInvalid, HasSubstr("no tensor 'model/v'")));
  EXPECT_THAT(
      RunWith([&](Part*, Part* one) { one->contents.slices["model/w"].whole.shape = {8}; }),
      StatusIs(kInvalid, AllOf(HasSubstr("'model/w' is F32 [8]"), HasSubstr("F32 [2, 4]"))));
  EXPECT_THAT(RunWith([&](Part* zero, Part*) {
                zero->contents.whole->first.tensors.push_back({"w", kWhole});
              }),
              StatusIs(kInvalid, HasSubstr("tensor 'w' is there twice")));
}

TEST_F(ConsolidateTest, ReplicasThatDifferAreRefusedByTensorAndParts) {
  const auto with_replica = [&](const std::string& values) {
    return RunWith([&](Part* zero, Part* one) {
      Add(one, {PartFile::kModel, "w", kWhole, 0, 8}, values + "eeeeffffgggghhhh");
      Add(zero, {PartFile::kModel, "w", kWhole, 0, 8}, "aaaabbbbccccddddeeeeffffgggghhhh");
    });
  };
  EXPECT_THAT(with_replica("aaaabbbbccccdddX"),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("'model/w': elements [0, 8)"), HasSubstr("rank-00000"),
                             HasSubstr("rank-00001"))));
}

TEST_F(ConsolidateTest, PartsOfDifferentSavesAreRefusedWithWhatDiffers) {
  const auto refused = [&](const std::function<void(Manifest*)>& change, const std::string& what) {
    EXPECT_THAT(RunWith([&](Part*, Part* one) { change(&one->manifest); }),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr(absl::StrCat("they differ in the ", what))));
  };
  refused([](Manifest* one) { one->job_id = "bert"; }, "job");
  refused([](Manifest* one) { one->step = 8; }, "step");
  refused([](Manifest* one) { one->world_size = 3; }, "world size");
  refused([](Manifest* one) { one->part->save_id = "again"; }, "save");
  refused([](Manifest* one) { one->optimizer = "adam"; }, "optimizer");
}

TEST_F(ConsolidateTest, MissingRanksAreNamedAndLeftOutOnlyIfAskedForAndCovered) {
  for (Part& part : parts_) part.manifest.world_size = 3;
  WriteAll();
  EXPECT_THAT(Run(), StatusIs(absl::StatusCode::kFailedPrecondition,
                              HasSubstr("the part of rank 2 is not given")));
  ConsolidateOptions options;
  options.allow_missing_ranks = true;
  ASSERT_OK_AND_ASSIGN(const Consolidated found, Consolidate({Path("p")}, Path("out"), options));
  EXPECT_EQ(found.missing_ranks, std::vector<int>{2});
  EXPECT_EQ(found.num_parts, 2);
  EXPECT_THAT(Run({Path("p/rank-00000")}, options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("'model/w': elements [4, 8) are nowhere")));
  EXPECT_THAT(Run({Path("p/rank-00001")}, options),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("the part of rank 0")));
  for (Part& part : parts_) part.manifest.world_size = std::numeric_limits<int>::max();
  WriteAll();
  EXPECT_THAT(Run({Path("p")}, options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2147483647 ranks")));
  std::filesystem::create_directories(Path("empty"));
  EXPECT_THAT(Run({Path("empty")}), StatusIs(absl::StatusCode::kNotFound, HasSubstr("empty")));
}

TEST_F(ConsolidateTest, DamageOfAnyByteOfAPartIsFoundAndNothingIsPublished) {
  WriteAll();
  ASSERT_OK(Run());
  ASSERT_OK_AND_ASSIGN(const std::string before, ReadWholeFile(Path("out/manifest.json"), 1 << 20));
  for (const char* name : {"shard.safetensors", "trainer-00001.bin", "part.json"}) {
    const std::string path = Path(absl::StrCat("p/rank-00001/", name));
    ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadWholeFile(path, 1 << 20));
    for (size_t at = 0; at < bytes.size(); at += at + 1 < bytes.size() ? 7 : 1) {
      std::string damaged = bytes;
      damaged[at] ^= 1;
      ASSERT_OK(WriteWholeFile(path, damaged));
      // A digit of the part's manifest may be another's, and then it is found by the other.
      EXPECT_FALSE(Run().ok()) << name << " at " << at;
    }
    ASSERT_OK(WriteWholeFile(path, bytes));
  }
  ASSERT_OK_AND_ASSIGN(const std::string after, ReadWholeFile(Path("out/manifest.json"), 1 << 20));
  EXPECT_EQ(after, before);
  EXPECT_FALSE(std::filesystem::exists(Path("out.partial")));
}

TEST_F(ConsolidateTest, ErrorOfAnyWriteLeavesThePreviousCheckpointAndNothingElse) {
  WriteAll();
  ConsolidateOptions options;
  options.max_file_bytes = 4;
  ASSERT_OK(Run({}, options));
  const std::string previous = *ReadWholeFile(Path("out/manifest.json"), 1 << 20);
  options.max_file_bytes = 0;
  for (const char* point :
       {"checkpoint.begin", "model-file.write", "model-file.sync", "model-file.publish",
        "file.write", "file.sync", "folder.sync", "checkpoint.rename"}) {
    int hit = 1;
    while (true) {
      SCOPED_TRACE(absl::StrCat(point, " ", hit));
      Fault fault;
      fault.at_hit = hit;
      fault.status = absl::ResourceExhaustedError("no space left");
      ArmFaultPoint(point, fault);
      const absl::Status status = Run({}, options);
      DisarmAllFaultPoints();
      if (status.ok()) break;
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, testing::_));
      EXPECT_EQ(*ReadWholeFile(Path("out/manifest.json"), 1 << 20), previous);
      EXPECT_FALSE(std::filesystem::exists(Path("out.partial")));
      ++hit;
    }
    EXPECT_GT(hit, 1) << "the point is on the way";
    options.max_file_bytes = 4;
    ASSERT_OK(Run({}, options));
    options.max_file_bytes = 0;
  }
}

}  // namespace
}  // namespace tessera
