#include "client/cli/put_file.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "client/live/live_info.h"
#include "job/job_codec.h"

namespace tessera::cli {
namespace {

constexpr int64_t kPieceBytes = 512 << 10;

// What a name in a file means in the job.
struct Meaning {
  const v1::LiveTensorInfo* info = nullptr;  // Null: a count of updates.
  std::string parameter;                     // Its name in the file.
};

bool IsBuffer(const v1::LiveTensorInfo& info) {
  return info.array() == v1::LIVE_STATE_ARRAY_BUFFER;
}

// By name, aliases and counts too.
std::map<std::string, Meaning> MeaningsOf(const std::vector<v1::LiveTensorInfo>& job) {
  std::map<std::string, Meaning> meanings;
  for (const v1::LiveTensorInfo& info : job) {
    const bool is_moment = IsMoment(info);
    meanings[info.name()] = {&info, is_moment ? info.parameter() : info.name()};
    for (const std::string& alias : info.aliases()) meanings[alias] = {&info, alias};
    if (is_moment)
      meanings[absl::StrCat("state.", info.parameter(), ".step")] = {nullptr, info.parameter()};
  }
  return meanings;
}

// What a tensor that is stored is called in the job.
struct Called {
  std::string stored_parameter;  // Of a moment or a count; else its own name.
  std::string in_job;
};

Called CallIn(const std::map<std::string, Meaning>& meanings,
              const std::vector<NameSelection::Rename>& renames, const std::string& stored) {
  const std::string plain = NameInModel(renames, stored);
  const auto found = meanings.find(plain);
  // A parameter's own name may also begin with "state.", and then it is not a moment's.
  const bool is_plain =
      found != meanings.end() && found->second.info != nullptr && !IsMoment(*found->second.info);
  absl::string_view parameter = stored;
  if (is_plain || !absl::ConsumePrefix(&parameter, "state.")) return {stored, plain};
  for (const absl::string_view part : {".exp_avg", ".exp_avg_sq", ".momentum_buffer", ".step"}) {
    absl::string_view of = parameter;
    if (!absl::ConsumeSuffix(&of, part)) continue;
    return {std::string(of), absl::StrCat("state.", NameInModel(renames, std::string(of)), part)};
  }
  return {stored, plain};
}

// A scalar, as an optimizer's file has it.
absl::StatusOr<int64_t> ReadCount(const StoredTensors& stored, const StoredKey& key) {
  const StoredEntry& entry = stored.entries().at(key);
  double count = -1;
  char bytes[8] = {};
  // Checked before the read, which writes to `bytes`.
  if (entry.numel == 1 && entry.size_bytes <= static_cast<int64_t>(sizeof(bytes)))
    RETURN_IF_ERROR(stored.Read(key, 0, 1, bytes));
  if (entry.numel == 1 && entry.dtype == StoredDType::kF32) {
    float value;
    memcpy(&value, bytes, sizeof(value));
    count = value;
  } else if (entry.numel == 1 && entry.dtype == StoredDType::kF64) {
    memcpy(&count, bytes, sizeof(count));
  }
  // Bounded before the cast, because the file may have any number, NaN included.
  if (count >= 0 && count <= 1e9) return static_cast<int64_t>(count);
  return absl::InvalidArgumentError(
      absl::StrCat("tensor '", key.second, "' is not a count of updates"));
}

absl::StatusOr<v1::PutTensor> TensorOf(const Meaning& meaning, const std::string& name,
                                       const StoredEntry& entry) {
  const std::optional<DType> dtype =
      entry.dtype.has_value() ? LayoutDType(*entry.dtype) : std::nullopt;
  if (!dtype.has_value() || (*dtype != DType::kFp32 && *dtype != DType::kFp64 && !IsHalf(*dtype))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor '", name, "' is in ", entry.dtype.has_value() ? Name(*entry.dtype) : "bytes",
        ": parameters are set from F32, F64, BF16 or F16"));
  }
  v1::PutTensor tensor;
  tensor.set_parameter(meaning.parameter);
  tensor.set_array(meaning.info->array());
  tensor.set_dtype(EncodeDType(*dtype));
  tensor.mutable_shape()->Add(entry.shape.begin(), entry.shape.end());
  return tensor;
}

absl::StatusOr<v1::PutTensor> BufferOf(const Meaning& meaning, const StoredEntry& entry) {
  const std::string dtype(entry.dtype.has_value() ? Name(*entry.dtype) : "bytes");
  if (dtype != meaning.info->stored_dtype()) {
    return absl::InvalidArgumentError(absl::StrCat("buffer '", meaning.parameter, "' is in ", dtype,
                                                   ", the job's in ",
                                                   meaning.info->stored_dtype()));
  }
  v1::PutTensor tensor;
  tensor.set_parameter(meaning.parameter);
  tensor.set_array(meaning.info->array());
  tensor.set_stored_dtype(dtype);
  tensor.mutable_shape()->Add(entry.shape.begin(), entry.shape.end());
  return tensor;
}

}  // namespace

absl::StatusOr<PutFilePlan> PlanPutFile(const std::vector<v1::LiveTensorInfo>& job,
                                        const StoredTensors& stored,
                                        const PutFileOptions& options) {
  const std::map<std::string, Meaning> meanings = MeaningsOf(job);
  PutFilePlan plan;
  std::map<std::string, std::string> stored_of;  // By name in the job.
  for (const auto& [key, entry] : stored.entries()) {
    // Only the trainers know what their part means.
    if (key.first == "trainer") continue;
    const Called called = CallIn(meanings, options.selection.renames, key.second);
    const std::string& name = called.in_job;
    const auto found = meanings.find(name);
    if (found == meanings.end()) {
      if (!IsWanted(options.selection, {name})) continue;
      if (key.first == "optimizer" && !options.moments) continue;
      const std::string was =
          name == key.second ? "" : absl::StrCat(", to which '", key.second, "' is renamed");
      return absl::NotFoundError(
          absl::StrCat("the job has no tensor '", name, "'", was,
                       ": if that is intended, leave it out with --exclude"));
    }
    const Meaning& meaning = found->second;
    // Counts come with the moments that they belong to.
    if (meaning.info == nullptr || !IsWanted(options.selection, {meaning.parameter})) continue;
    const bool is_moment = IsMoment(*meaning.info);
    if (IsBuffer(*meaning.info) ? !options.buffers : is_moment && !options.moments) continue;
    // Of two tensors for one the order in the file would decide.
    const auto [other, is_new] = stored_of.emplace(name, key.second);
    if (!is_new) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensors '", other->second, "' and '", key.second, "' are both '", name, "' in the job"));
    }
    if (IsBuffer(*meaning.info)) {
      ASSIGN_OR_RETURN(*plan.begin.add_tensors(), BufferOf(meaning, entry));
      plan.keys.push_back(key);
      continue;
    }
    ASSIGN_OR_RETURN(v1::PutTensor tensor, TensorOf(meaning, name, entry));
    if (is_moment) {
      const StoredKey count = {key.first, absl::StrCat("state.", called.stored_parameter, ".step")};
      if (stored.entries().count(count) == 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("tensor '", key.second, "' is there without '", count.second, "'"));
      }
      ASSIGN_OR_RETURN(const int64_t updates, ReadCount(stored, count));
      tensor.set_update_count(updates);
    }
    *plan.begin.add_tensors() = std::move(tensor);
    plan.keys.push_back(key);
  }
  if (plan.keys.empty()) return absl::NotFoundError("no tensor of the file is selected");
  const bool has_moments =
      std::any_of(plan.begin.tensors().begin(), plan.begin.tensors().end(),
                  [](const v1::PutTensor& tensor) { return tensor.has_update_count(); });
  if (options.moments && !has_moments)
    return absl::NotFoundError("the file has no moments of the selected tensors");
  return plan;
}

absl::StatusOr<v1::PutReply> PutFile(LiveClient* live, PutClient* client, const std::string& job_id,
                                     const std::string& path, const PutFileOptions& options,
                                     const PutProgress& progress) {
  ASSIGN_OR_RETURN(const std::unique_ptr<StoredTensors> stored, StoredTensors::Open(path));
  v1::LiveStateQuery query;
  query.set_job_id(job_id);
  // Everything, so that names in the file are recognised even if they are not to be sent.
  query.set_moments(true);
  query.set_buffers(true);
  ASSIGN_OR_RETURN(const std::vector<v1::LiveTensorInfo> job, live->List(query));
  absl::StatusOr<PutFilePlan> plan = PlanPutFile(job, *stored, options);
  RETURN_IF_ERROR(Annotate(plan.status(), path));
  plan->begin.set_job_id(job_id);
  plan->begin.set_wait_ms(options.wait_ms);
  int64_t done_bytes = 0, all_bytes = 0;
  for (const StoredKey& key : plan->keys) all_bytes += stored->entries().at(key).size_bytes;
  return client->Put(plan->begin, [&](PutClient::SendPiece send) -> absl::Status {
    v1::LivePiece piece;
    for (const StoredKey& key : plan->keys) {
      const StoredEntry& entry = stored->entries().at(key);
      const int64_t element_bytes = SizeBits(*entry.dtype) / 8;
      for (int64_t begin = 0; begin < entry.numel;) {
        const int64_t count = std::min(entry.numel - begin, kPieceBytes / element_bytes);
        piece.set_offset_elements(begin);
        piece.mutable_data()->resize(count * element_bytes);
        RETURN_IF_ERROR(stored->Read(key, begin, count, piece.mutable_data()->data()));
        if (!send(piece)) return absl::OkStatus();  // The call's status says why.
        begin += count;
        done_bytes += count * element_bytes;
        if (progress != nullptr) progress(done_bytes, all_bytes);
      }
    }
    return absl::OkStatus();
  });
}

}  // namespace tessera::cli
