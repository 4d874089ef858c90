#include "tests/fault/save_steps/save_kinds.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "checkpoint/manifest/verify_checkpoint.h"
#include "checkpoint/parts/consolidate.h"
#include "worker/comm/loopback/loopback_communicator.h"
#include "worker/comm/shm/shm_test_group.h"
#include "worker/executor/load/checkpoint_load.h"
#include "worker/executor/load/model_load.h"
#include "worker/executor/save/checkpoint_save.h"
#include "worker/executor/save/model_save.h"
#include "worker/executor/save/part_save.h"

namespace tessera {
namespace {

constexpr int kRanks = 2;
constexpr int64_t kMaxFileBytes = 4 << 10;  // The first parameter has more, the others fit in one.
constexpr int64_t kDirectWriteBytes = 4 << 10;  // The first parameter has a block.

bool IsModelAlone(SaveKind kind) {
  return kind == SaveKind::kModelFile || kind == SaveKind::kModelFolder;
}

float ValueOf(int version, StateArray array, const ShardSegment& segment, int64_t element) {
  const int64_t place = segment.parameter_begin_elements + element;
  return static_cast<float>(version * 64 + static_cast<int>(array) * 16 +
                            segment.job_parameter * 2) +
         static_cast<float>(place % 1009) / 1024;
}

absl::StatusOr<ExecutorMemory> MemoryOf(int rank, int world_size) {
  ModelSpec model;
  model.units.push_back({"root", {{"a", {64, 65}}, {"b", {5}}}});
  model.units.push_back({"block", {{"c", {7, 3}}, {"d", {9}}}});
  ExecutorMemory memory;
  memory.job_id = "toy";
  memory.rank = Rank(rank);
  memory.config.world_size = world_size;
  ASSIGN_OR_RETURN(memory.layout, ModelLayout::Create(model, LayoutOptions(), world_size));
  ASSIGN_OR_RETURN(memory.plan, JobMemory::Create(memory.layout, memory.config));
  return memory;
}

int64_t StepOf(SaveKind kind, int version) { return kind == SaveKind::kPartsOver ? 1 : version; }

TrainingProgress ProgressOf(SaveKind kind, int version) {
  TrainingProgress progress;
  progress.step = StepOf(kind, version);
  progress.update_counts = std::vector<int64_t>(4, progress.step);
  progress.groups = {HyperParameters()};
  return progress;
}

v1::SaveRequest RequestOf(SaveKind kind, const std::string& path, int version, int rank) {
  v1::SaveRequest request;
  v1::SaveSpec* spec = request.mutable_spec();
  spec->set_path(path);
  if (kind == SaveKind::kFiles || kind == SaveKind::kModelFolder)
    spec->set_max_file_bytes(kMaxFileBytes);
  spec->set_is_model(IsModelAlone(kind));
  if (IsModelAlone(kind)) return request;
  spec->set_in_parts(kind == SaveKind::kParts || kind == SaveKind::kPartsOver);
  if (kind == SaveKind::kRetention) spec->set_keep_newest(2);
  request.set_trainer_state(absl::StrCat("rank ", rank, " of version ", version));
  if (rank != 0) return request;
  v1::NamedTensor* buffer = request.add_buffers();
  buffer->set_name("seen");
  buffer->set_dtype("I64");
  buffer->add_shape(1);
  buffer->set_values(std::string(8, static_cast<char>(version)));
  return request;
}

absl::Status SaveRank(SaveKind kind, const std::string& path, int version, Communicator* comm) {
  ASSIGN_OR_RETURN(const ExecutorMemory memory, MemoryOf(comm->rank(), comm->size()));
  std::vector<float> values;
  const auto read = [&](StateArray array, const ShardSegment& segment) -> ConstValues {
    values.resize(segment.numel);
    for (int64_t i = 0; i < segment.numel; ++i) values[i] = ValueOf(version, array, segment, i);
    return absl::MakeConstSpan(values);
  };
  const SavedState state = {/*version=*/version, ProgressOf(kind, version),
                            MomentsOf(memory.config.optimizer), read};
  const v1::SaveRequest request = RequestOf(kind, path, version, comm->rank());
  SaveControl control;
  control.direct_write_bytes = kDirectWriteBytes;
  const std::atomic<bool> stopped{false};
  v1::SaveReply reply;
  if (IsModelAlone(kind)) {
    const std::vector<ShardSegment> segments =
        SegmentsOf(memory.layout, memory.config, memory.plan, memory.rank);
    return SaveModel(request, memory.layout, segments, state, comm, &stopped, kDirectWriteBytes);
  }
  const auto save = request.spec().in_parts() ? SaveParts : SaveCheckpoint;
  return save(request, memory, InMemory(state), comm, control, &reply);
}

absl::Status SaveByRanks(SaveKind kind, const std::string& path, int version) {
  GroupOptions group;
  group.size = kRanks;
  for (const absl::Status& status : RunShmThreads(group, [&](const RankContext& context) {
         return SaveRank(kind, path, version, context.comm);
       }))
    RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

std::string PartsOf(const std::string& root, int version) {
  return absl::StrCat(root, "/", NameOfSaved(SaveKind::kParts, version));
}

// What a job has after a load.
struct Loaded {
  std::map<std::pair<int, int>, std::vector<float>> values;  // By array and parameter of the job.
  std::map<std::pair<int, int>, ShardSegment> segments;
  std::optional<TrainingProgress> progress;
};

class StateOfLoad final : public StateWriter {
 public:
  explicit StateOfLoad(Loaded* loaded) : loaded_(*loaded) {}
  void Set(StateArray array, const ShardSegment& segment, int64_t begin_elements,
           const ConstValues& values) override {
    const absl::Span<const float> from = values;
    std::vector<float>* const to = Of(array, segment);
    std::copy(from.begin(), from.end(), to->begin() + begin_elements);
  }
  void Clear(StateArray array, const ShardSegment& segment) override {
    Of(array, segment)->assign(segment.numel, 0);
  }
  void Keep(StateArray, const ShardSegment&) override {}

 private:
  std::vector<float>* Of(StateArray array, const ShardSegment& segment) {
    const std::pair<int, int> key = {static_cast<int>(array), segment.job_parameter};
    loaded_.segments[key] = segment;
    std::vector<float>& values = loaded_.values[key];
    values.resize(segment.numel);
    return &values;
  }

  Loaded& loaded_;
};

absl::StatusOr<Loaded> Load(SaveKind kind, const std::string& path) {
  ASSIGN_OR_RETURN(const ExecutorMemory memory, MemoryOf(0, 1));
  ASSIGN_OR_RETURN(const auto communicator, LoopbackCommunicator::Create(0, 1));
  Loaded loaded;
  StateOfLoad writer(&loaded);
  LoadedState state = {
      /*first=*/true, MomentsOf(memory.config.optimizer), &writer, std::nullopt, {}};
  const std::atomic<bool> stopped{false};
  if (IsModelAlone(kind)) {
    const std::vector<ShardSegment> segments =
        SegmentsOf(memory.layout, memory.config, memory.plan, memory.rank);
    RETURN_IF_ERROR(LoadModel(path, {/*strict=*/true}, /*buffers=*/{}, memory.layout, segments,
                              &state, communicator.get(), &stopped)
                        .status());
  } else {
    v1::LoadRequest request;
    request.set_path(path);
    request.set_is_checkpoint(true);
    v1::NamedTensor* buffer = request.add_buffers();
    buffer->set_name("seen");
    buffer->set_dtype("I64");
    buffer->add_shape(1);
    RETURN_IF_ERROR(LoadCheckpoint(request, memory, &state, communicator.get(), &stopped).status());
  }
  loaded.progress = state.progress;
  return loaded;
}

bool IsVersion(SaveKind kind, const Loaded& loaded, int version) {
  const size_t arrays = IsModelAlone(kind) ? 1 : 3;
  if (loaded.values.size() != arrays * 4) return false;
  for (const auto& [key, values] : loaded.values) {
    const ShardSegment& segment = loaded.segments.at(key);
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] != ValueOf(version, static_cast<StateArray>(key.first), segment, i))
        return false;
    }
  }
  if (IsModelAlone(kind)) return true;
  const TrainingProgress expected = ProgressOf(kind, version);
  return loaded.progress.has_value() && loaded.progress->step == expected.step &&
         loaded.progress->update_counts == expected.update_counts;
}

}  // namespace

std::string NameOfSaved(SaveKind kind, int version) {
  switch (kind) {
    case SaveKind::kWhole:
    case SaveKind::kFiles:
    case SaveKind::kConsolidate:
      return "c";
    case SaveKind::kModelFile:
      return "m";
    case SaveKind::kModelFolder:
      return "f";
    case SaveKind::kRetention:
      return absl::StrCat("s", version);
    case SaveKind::kParts:
      return absl::StrCat("p", version);
    case SaveKind::kPartsOver:
      return "p";
  }
  return "";
}

absl::Status PrepareVersion(SaveKind kind, const std::string& root, int version) {
  if (kind != SaveKind::kConsolidate) return absl::OkStatus();
  return SaveByRanks(SaveKind::kParts, PartsOf(root, version), version);
}

absl::Status SaveVersion(SaveKind kind, const std::string& root, int version) {
  const std::string path = absl::StrCat(root, "/", NameOfSaved(kind, version));
  if (kind == SaveKind::kConsolidate)
    return Consolidate({PartsOf(root, version)}, path, {}).status();
  return SaveByRanks(kind, path, version);
}

absl::StatusOr<int> LoadedVersion(SaveKind kind, const std::string& path,
                                  const std::string& scratch) {
  if (!std::filesystem::exists(path)) return absl::NotFoundError(absl::StrCat("nothing at ", path));
  std::string whole = path;
  if (kind == SaveKind::kParts || kind == SaveKind::kPartsOver) {
    whole = absl::StrCat(scratch, "/consolidated");
    RETURN_IF_ERROR(Consolidate({path}, whole, {}).status());
  }
  if (!IsModelAlone(kind)) {
    ASSIGN_OR_RETURN(const Verification verified, VerifyCheckpoint(whole));
    if (!verified.damages.empty()) return verified.damages[0];
  }
  ASSIGN_OR_RETURN(const Loaded loaded, Load(kind, whole));
  constexpr int kMaxVersion = 8;
  for (int version = 1; version <= kMaxVersion; ++version) {
    if (IsVersion(kind, loaded, version)) return version;
  }
  return absl::DataLossError(absl::StrCat(path, " is no version"));
}

}  // namespace tessera
