// What coordinators and workers send of a state, as `tessera get` takes it; and what a coordinator
// sends a worker of a put.
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "checkpoint/safetensors/crc32.h"
#include "checkpoint/safetensors/stored_tensors.h"
#include "client/cli/live_file.h"
#include "job/job_codec.h"
#include "proto/live_put.pb.h"
#include "proto/live_state.pb.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tests/fuzz/messages.h"
#include "worker/keeper/put_stage.h"

namespace tessera::fuzz {
namespace {

// Files of this process's; goes with it.
const std::string& Folder() {
  struct Made {
    Made() {
      const std::string pattern = std::filesystem::temp_directory_path() / "tessera-fuzz-XXXXXX";
      path = pattern;
      TESSERA_CHECK(mkdtemp(path.data()) != nullptr);
    }
    ~Made() { std::filesystem::remove_all(path); }
    std::string path;
  };
  static const Made made;
  return made.path;
}

// What a call of GetLiveState gives, or a list.
class GivenState : public LiveClient {
 public:
  GivenState(std::vector<v1::LiveTensorInfo> tensors, absl::string_view replies)
      : tensors_(std::move(tensors)), replies_(replies) {}

  absl::StatusOr<std::vector<v1::LiveTensorInfo>> List(const v1::LiveStateQuery&) override {
    return tensors_;
  }
  absl::Status Get(const v1::LiveStateQuery&, Way, Take take) override {
    v1::LiveStateReply reply;
    while (replies_.Next(&reply)) {
      Note(reply);
      const absl::Status taken = take(reply);
      if (!taken.ok()) return taken;
    }
    return absl::OkStatus();
  }
  // By tensor: all that was given for it.
  const std::map<std::string, std::string>& given() const { return given_; }

 private:
  void Note(const v1::LiveStateReply& reply) {
    if (reply.has_tensor()) {
      const v1::LiveTensorInfo& tensor = reply.tensor();
      current_ = &given_[tensor.name()];
      current_->clear();
      if (tensor.array() != v1::LIVE_STATE_ARRAY_FIRST_MOMENT) return;
      const auto updates = static_cast<float>(tensor.update_count());
      char bytes[sizeof(updates)];
      memcpy(bytes, &updates, sizeof(updates));
      given_[absl::StrCat("state.", tensor.parameter(), ".step")].assign(bytes, sizeof(bytes));
    } else if (reply.has_piece() && current_ != nullptr) {
      *current_ += reply.piece().data();
    }
  }

  const std::vector<v1::LiveTensorInfo> tensors_;
  Messages replies_;
  std::map<std::string, std::string> given_;
  std::string* current_ = nullptr;
};

v1::LiveTensorInfo Info(const std::string& name, v1::LiveStateArray array, v1::DType dtype,
                        const std::vector<int64_t>& shape) {
  v1::LiveTensorInfo info;
  info.set_name(name);
  info.set_parameter("w");
  info.set_array(array);
  info.set_dtype(dtype);
  for (const int64_t dim : shape) info.add_shape(dim);
  return info;
}

std::vector<v1::LiveTensorInfo> ListedTensors() {
  const auto parameter = v1::LIVE_STATE_ARRAY_PARAMETER;
  std::vector<v1::LiveTensorInfo> listed = {
      Info("w", parameter, v1::DTYPE_FP32, {3, 2}),
      Info("state.w.exp_avg", v1::LIVE_STATE_ARRAY_FIRST_MOMENT, v1::DTYPE_FP32, {3, 2}),
      Info("state.w.exp_avg_sq", v1::LIVE_STATE_ARRAY_SECOND_MOMENT, v1::DTYPE_FP32, {3, 2}),
      Info("h", parameter, v1::DTYPE_BF16, {3}),
      Info("s", parameter, v1::DTYPE_FP64, {}),
      Info("none", parameter, v1::DTYPE_FP32, {0, 4}),
      Info("mask", v1::LIVE_STATE_ARRAY_BUFFER, v1::DTYPE_UNSPECIFIED, {3})};
  listed[0].add_aliases("tied");
  listed.back().set_stored_dtype("BOOL");
  return listed;
}

// A job of two ranks, both on worker "w".
JobRegions MakeRegions() {
  v1::Job job;
  ModelSpec model;
  model.units.push_back({"root", {{"a", {20}}, {"b", {3}, DType::kFp32, false}}});
  model.units.push_back({"top", {{"d", {7}, DType::kFp64}}});
  JobConfig config;
  config.world_size = 2;
  config.layout.shard_alignment_bytes = 0;
  job.set_job_id("fuzzed");
  *job.mutable_model() = EncodeModel(model);
  *job.mutable_config() = EncodeJobConfig(config);
  for (int rank = 0; rank < config.world_size; ++rank) {
    job.add_placements()->set_rank(rank);
    job.mutable_placements(rank)->set_worker_id("w");
  }
  auto regions = JobRegions::Create(job, *LocalRanksOf(job, "w"));
  TESSERA_CHECK(regions.ok());
  regions->group()->initialized.store(1);
  return *std::move(regions);
}

}  // namespace

// A file that came to be has the bytes that came, all of them.
void LiveReplies(absl::string_view bytes) {
  GivenState client(ListedTensors(), bytes);
  const std::string path = Folder() + "/state.safetensors";
  const auto saved = cli::SaveLiveState(&client, {}, LiveClient::Way::kThroughCoordinator, path,
                                        /*progress=*/nullptr);
  TESSERA_CHECK(saved.ok() == std::filesystem::exists(path));
  if (!saved.ok()) return;
  {
    const auto stored = StoredTensors::Open(path);
    TESSERA_CHECK(stored.ok());
    TESSERA_CHECK((*stored)->entries().size() == client.given().size());
    for (const auto& [key, entry] : (*stored)->entries()) {
      std::string values(entry.size_bytes, 0);
      TESSERA_CHECK((*stored)->Read(key, 0, entry.numel, values.data()).ok());
      TESSERA_CHECK(client.given().at(key.second) == values);
    }
  }
  TESSERA_CHECK(std::filesystem::remove(path));
}

// A list that was accepted has sizes, and no file where nothing of it comes.
void LiveTensors(absl::string_view bytes) {
  Messages messages(bytes);
  std::vector<v1::LiveTensorInfo> tensors;
  v1::LiveTensorInfo tensor;
  while (messages.Next(&tensor)) tensors.push_back(tensor);
  GivenState client(tensors, "");
  const auto listed = cli::ListLiveState(&client, {});
  if (!listed.ok()) return;
  constexpr int64_t kMostBytes = 1 << 20;  // That a file is tried with.
  int64_t all_bytes = 0;
  for (const auto& [key, entry] : *listed) {
    TESSERA_CHECK(entry.numel >= 0 && entry.size_bytes >= 0);
    if (entry.size_bytes > kMostBytes) return;
    all_bytes += entry.size_bytes;
  }
  if (all_bytes > kMostBytes) return;
  const std::string path = Folder() + "/empty.safetensors";
  const auto saved = cli::SaveLiveState(&client, {}, LiveClient::Way::kThroughCoordinator, path,
                                        /*progress=*/nullptr);
  TESSERA_CHECK(!saved.ok() || tensors.empty());
  TESSERA_CHECK(saved.ok() == std::filesystem::remove(path));
}

// A completely accepted put is in the file, range after range, with its sums.
void PutCommands(absl::string_view bytes) {
  static const JobRegions* const regions = new JobRegions(MakeRegions());
  Messages messages(bytes);
  v1::PutStage request;
  if (!messages.Next(&request)) return;
  auto stage = PutStage::Create(*regions, request, Folder());
  if (!stage.ok()) return;
  v1::LivePiece piece;
  while (messages.Next(&piece)) {
    if (!(*stage)->Take(piece).ok()) return;
  }
  const auto staged = (*stage)->Seal();
  if (!staged.ok()) return;
  const StagedPut& put = **staged;
  TESSERA_CHECK(put.put == request.put() && put.put != 0);
  TESSERA_CHECK(put.file.size_bytes() == put.manifest_offset_bytes + put.manifest_size_bytes);
  std::string text(put.manifest_size_bytes, 0);
  TESSERA_CHECK(put.file.Read(put.manifest_offset_bytes, text.data(), text.size()).ok());
  v1::PutManifest manifest;
  TESSERA_CHECK(manifest.ParseFromString(text));
  for (int i = 0; i < manifest.ranges_size(); ++i) {
    const v1::PutManifest::Range& range = manifest.ranges(i);
    const int64_t end_bytes = i + 1 < manifest.ranges_size() ? manifest.ranges(i + 1).offset_bytes()
                                                             : put.manifest_offset_bytes;
    const int64_t size_bytes = end_bytes - range.offset_bytes();
    TESSERA_CHECK(range.numel() > 0 && size_bytes > 0 && size_bytes % range.numel() == 0);
    std::string values(size_bytes, 0);
    TESSERA_CHECK(put.file.Read(range.offset_bytes(), values.data(), size_bytes).ok());
    TESSERA_CHECK(Crc32(values.data(), values.size()) == range.crc32());
  }
}

}  // namespace tessera::fuzz
