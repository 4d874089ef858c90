#include "tessera/torch/live_module.h"

#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "client/torch/model_buffers.h"
#include "tessera/live_map.h"

namespace tessera {
namespace {

constexpr size_t kMaxPatterns = 100;  // Of a query.

// What bytes of a job's tensor are here; nothing: libtorch has no such type.
std::optional<torch::ScalarType> ScalarTypeOf(StoredDType dtype) {
  // The types that StoredDTypeOf knows, asked the other way round.
  for (const torch::ScalarType type :
       {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf, torch::kLong, torch::kInt,
        torch::kShort, torch::kChar, torch::kByte, torch::kBool, torch::kComplexFloat}) {
    if (StoredDTypeOf(type) == dtype) return type;
  }
  return std::nullopt;
}

// A tensor of the module, which may have several names.
struct Target {
  torch::Tensor tensor;
  std::vector<std::string> names;
  bool is_wanted = false;
  std::string unfit;                 // Why it cannot be set, whatever the job has; empty: it can.
  std::vector<std::string> sources;  // Of the job.
  torch::Tensor staged;              // What it will be.
};

// Two tensors that are the same elements are one, whatever made them.
struct Memory {
  const void* storage = nullptr;
  const void* begin = nullptr;  // Of an empty one: the tensor's own.
  std::vector<int64_t> sizes, strides;

  static Memory Of(const torch::Tensor& tensor) {
    // Empty tensors share nothing.
    if (tensor.numel() == 0) return {tensor.unsafeGetTensorImpl()};
    return {tensor.storage().unsafeGetStorageImpl(), tensor.data_ptr(), tensor.sizes().vec(),
            tensor.strides().vec()};
  }
  bool operator<(const Memory& other) const {
    return std::tie(storage, begin, sizes, strides) <
           std::tie(other.storage, other.begin, other.sizes, other.strides);
  }
};

// Why nothing but its name may be asked of the tensor: libtorch would throw, or write to memory
// that is not the tensor's. Empty: it is an ordinary tensor.
std::string UnfitOf(const torch::Tensor& tensor) {
  if (tensor.layout() != torch::kStrided)
    return absl::StrCat("is ", (std::ostringstream() << tensor.layout()).str());
  if (tensor.is_nested() || !tensor.has_storage()) return "has no storage";
  if (tensor.is_meta()) return "is on the meta device";
  if (tensor._is_zerotensor()) return "is zeroes without memory";
  if (tensor.numel() == 0) return "";
  // In elements, from the storage's begin. What comes from set_ or as_strided may reach beyond it.
  int64_t last = tensor.storage_offset();
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const int64_t end_bytes = (last + 1) * static_cast<int64_t>(tensor.element_size());
  const auto storage_bytes = static_cast<int64_t>(tensor.storage().nbytes());
  if (end_bytes <= storage_bytes) return "";
  return absl::StrCat("needs ", end_bytes, " bytes of its storage, which has ", storage_bytes);
}

// What libtorch throws: it has no memory, perhaps, or the device failed.
absl::Status Caught(absl::FunctionRef<absl::Status()> body) {
  try {
    return body();
  } catch (const c10::Error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("live state cannot be set: ", error.what_without_backtrace()));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("live state cannot be set: no memory is left");
  }
}

class Plan {
 public:
  Plan(const torch::nn::Module& module, const LiveModule& options) : options_(options) {
    for (const auto& item : module.named_parameters()) Add(item.key(), item.value());
    if (options.buffers) {
      for (const auto& item : module.named_buffers()) Add(item.key(), item.value());
    }
    // Matched after all names are known: a tensor is wanted under any of them.
    for (Target& target : targets_) target.is_wanted = IsWanted(options.names, target.names);
  }

  // Finds out which tensor of the job is which of the module.
  absl::Status Match(const std::vector<LiveEntry>& entries) {
    for (const LiveEntry& entry : entries) RETURN_IF_ERROR(MatchOne(entry));
    for (const Target& target : targets_) {
      if (target.is_wanted && target.sources.empty())
        missing.insert(missing.end(), target.names.begin(), target.names.end());
    }
    if (options_.strict && (!missing.empty() || !unexpected.empty())) {
      return absl::NotFoundError(absl::StrCat(
          "job '", options_.job_id, "' and the module differ. Missing in the job: ",
          missing.empty() ? "nothing" : absl::StrJoin(missing, ", "),
          ". Unexpected: ", unexpected.empty() ? "nothing" : absl::StrJoin(unexpected, ", ")));
    }
    // Before any byte is copied.
    RETURN_IF_ERROR(CheckAreApart());
    if (!entries_.empty()) return absl::OkStatus();
    return absl::NotFoundError(
        absl::StrCat("job '", options_.job_id, "' has nothing that is to be set in the module"));
  }

  LiveQuery Query(size_t num_entries) const {
    LiveQuery query;
    query.job_id = options_.job_id;
    query.buffers = options_.buffers;
    // With too many names for a query, all is read, and what is not wanted is left out.
    if (entries_.size() == num_entries || entries_.size() > kMaxPatterns) return query;
    for (const auto& [name, entry] : entries_) query.include.push_back(name);
    return query;
  }

  // Null: it is not wanted.
  const LiveEntry* Find(const std::string& name) const {
    const auto found = entries_.find(name);
    return found == entries_.end() ? nullptr : &found->second;
  }

  void Restart() {
    staged_.clear();
    for (Target& target : targets_) target.staged = torch::Tensor();
  }

  // All of one of the job's tensors.
  absl::Status Stage(const std::string& name, const torch::Tensor& values) {
    // A source that says a tensor twice must not replace what was checked.
    if (!staged_.insert(name).second)
      return absl::DataLossError(absl::StrCat("tensor '", name, "' arrived twice"));
    for (const size_t index : targets_of_.at(name)) {
      Target& target = targets_[index];
      torch::Tensor staged = values.to(target.tensor.scalar_type());
      // The job has it under several names. Bits are compared, so that a NaN equals itself.
      if (!target.staged.defined()) {
        target.staged = std::move(staged);
      } else if (memcmp(target.staged.data_ptr(), staged.data_ptr(), staged.nbytes()) != 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the module has one tensor as '", absl::StrJoin(target.names, "', '"),
            "', and the job several that differ: '", absl::StrJoin(target.sources, "', '"), "'"));
      }
    }
    return absl::OkStatus();
  }

  // May throw while no tensor was changed yet. A later error of a device is permanent, and makes
  // the module unusable.
  absl::Status Apply() const {
    // All or nothing: the module is not touched before every tensor has come.
    if (staged_.size() != entries_.size())
      return absl::AbortedError(absl::StrCat("job '", options_.job_id, "' changed meanwhile"));
    const torch::NoGradGuard no_grad;
    for (const Target& target : targets_) {
      if (!target.staged.defined()) continue;
      // Such tensors may be written to in inference mode only.
      std::optional<c10::InferenceMode> inference;
      if (target.tensor.is_inference()) inference.emplace();
      torch::Tensor tensor = target.tensor;
      tensor.copy_(target.staged);
    }
    return absl::OkStatus();
  }

  std::vector<std::string> missing, unexpected;

 private:
  void Add(const std::string& name, const torch::Tensor& tensor) {
    if (!tensor.defined()) return;
    std::string unfit;
    Memory memory = {tensor.unsafeGetTensorImpl()};
    // Tensor subclasses may throw from any question.
    try {
      unfit = UnfitOf(tensor);
      if (unfit.empty()) memory = Memory::Of(tensor);
    } catch (const c10::Error& error) {  // Of a kind of tensor that is not known here.
      unfit = absl::StrCat("cannot be looked at: ", error.what_without_backtrace());
    }
    const auto [known, is_new] = by_memory_.emplace(memory, targets_.size());
    if (is_new) targets_.push_back({tensor, {}, false, unfit, {}, {}});
    targets_[known->second].names.push_back(name);
    by_name_[name] = known->second;
  }

  // Two tensors that are set separately must not share some of their elements, as a view does.
  absl::Status CheckAreApart() const {
    std::map<const void*, std::vector<const Target*>> by_storage;
    for (const Target& target : targets_) {
      if (target.sources.empty() || target.tensor.numel() == 0) continue;
      std::vector<const Target*>& others =
          by_storage[target.tensor.storage().unsafeGetStorageImpl()];
      for (const Target* other : others) {
        // TooHard: libtorch cannot say. Two views that are not compared are let through.
        const at::MemOverlapStatus overlap = at::get_overlap_status(target.tensor, other->tensor);
        if (overlap == at::MemOverlapStatus::No || overlap == at::MemOverlapStatus::TooHard)
          continue;
        return absl::InvalidArgumentError(
            absl::StrCat("'", other->names[0], "' and '", target.names[0],
                         "' share elements, and are not the same: leave one of them out"));
      }
      others.push_back(&target);
    }
    return absl::OkStatus();
  }

  absl::Status MatchOne(const LiveEntry& entry) {
    std::vector<std::string> names = {NameInModel(options_.names.renames, entry.name)};
    for (const std::string& alias : entry.aliases)
      names.push_back(NameInModel(options_.names.renames, alias));
    if (!IsWanted(options_.names, names)) return absl::OkStatus();
    std::vector<size_t> found;
    for (const std::string& name : names) {
      const auto [other, is_new] = source_of_.emplace(name, entry.name);
      // Two tensors of the job under one name of the module, by a rename or an alias.
      if (!is_new && other->second != entry.name) {
        return absl::InvalidArgumentError(absl::StrCat("tensors '", other->second, "' and '",
                                                       entry.name, "' are both '", name,
                                                       "' in the module"));
      }
      const auto target = by_name_.find(name);
      if (target == by_name_.end()) continue;
      if (std::find(found.begin(), found.end(), target->second) == found.end())
        found.push_back(target->second);
    }
    if (found.empty()) unexpected.push_back(entry.name);
    for (const size_t index : found) {
      if (!targets_[index].is_wanted) continue;  // Under another of its names.
      RETURN_IF_ERROR(CheckFits(entry, targets_[index]));
      targets_[index].sources.push_back(entry.name);
      targets_of_[entry.name].push_back(index);
      entries_[entry.name] = entry;
    }
    return absl::OkStatus();
  }

  static absl::Status CheckFits(const LiveEntry& entry, const Target& target) {
    const torch::Tensor& tensor = target.tensor;
    const std::string what = absl::StrCat("'", target.names[0], "'");
    if (!target.unfit.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, " ", target.unfit, ", so it cannot be set"));
    }
    // copy_ into an expanded tensor would write one element several times.
    if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, " has several elements in one place, so it cannot be set"));
    }
    if (tensor.sizes().vec() != entry.shape) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, " is [", absl::StrJoin(tensor.sizes().vec(), ", "), "], the job's '",
                       entry.name, "' [", absl::StrJoin(entry.shape, ", "), "]"));
    }
    const std::optional<torch::ScalarType> type = ScalarTypeOf(entry.dtype);
    // Floating-point types are converted, others must be the same.
    const bool both_float =
        type.has_value() && torch::isFloatingType(*type) && tensor.is_floating_point();
    if (both_float || (type.has_value() && *type == tensor.scalar_type())) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(what, " is ", torch::toString(tensor.scalar_type()), ", the job's '",
                     entry.name, "' ", Name(entry.dtype)));
  }

  const LiveModule& options_;
  std::vector<Target> targets_;
  std::map<Memory, size_t> by_memory_;
  std::map<std::string, size_t> by_name_;
  std::map<std::string, std::string> source_of_;           // By name in the module.
  std::map<std::string, LiveEntry> entries_;               // By name in the job: that are wanted.
  std::map<std::string, std::vector<size_t>> targets_of_;  // The same.
  std::set<std::string> staged_;                           // By name in the job.
};

// Stages what comes; nothing of the module changes here.
class StagingSink : public LiveSink {
 public:
  explicit StagingSink(Plan* plan) : plan_(plan) {}

  absl::Status Begin(const LiveVersion&) override {
    // The copy may start again with another version.
    plan_->Restart();
    return absl::OkStatus();
  }

  absl::Status Entry(const LiveEntry& entry) override {
    return Caught([&] { return BeginEntry(entry); });
  }

  absl::Status Chunk(int64_t, absl::string_view bytes) override {
    if (listed_ == nullptr || bytes.empty()) return absl::OkStatus();
    memcpy(static_cast<char*>(values_.data_ptr()) + done_bytes_, bytes.data(), bytes.size());
    done_bytes_ += static_cast<int64_t>(bytes.size());
    return Caught([this] { return StageIfWhole(); });
  }

 private:
  absl::Status BeginEntry(const LiveEntry& entry) {
    listed_ = plan_->Find(entry.name);
    if (listed_ == nullptr) return absl::OkStatus();
    // The list was taken before: the job may have been replaced meanwhile.
    if (listed_->shape != entry.shape || listed_->dtype != entry.dtype)
      return absl::AbortedError(absl::StrCat("tensor '", entry.name, "' changed meanwhile"));
    is_bool_ = entry.dtype == StoredDType::kBool;
    // As bytes: libtorch must not see a bool that is neither 0 nor 1.
    values_ = torch::empty(entry.shape, is_bool_ ? torch::kByte : *ScalarTypeOf(entry.dtype));
    done_bytes_ = 0;
    return StageIfWhole();
  }

  absl::Status StageIfWhole() {
    if (done_bytes_ != listed_->size_bytes) return absl::OkStatus();
    // A bool's byte must be 0 or 1.
    return plan_->Stage(listed_->name, is_bool_ ? values_.ne(0) : values_);
  }

  Plan* const plan_;
  const LiveEntry* listed_ = nullptr;  // Of what comes; null where it is not wanted.
  torch::Tensor values_;
  bool is_bool_ = false;
  int64_t done_bytes_ = 0;
};

}  // namespace

absl::StatusOr<LoadedLiveState> LoadLiveState(torch::nn::Module* module,
                                              const LiveModule& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<LiveReader> reader, LiveReader::Open(options.reader));
  Plan plan(*module, options);
  LiveQuery all;
  all.job_id = options.job_id;
  all.buffers = options.buffers;
  // All names, since a rename may map any of them to one of the module's.
  ASSIGN_OR_RETURN(const std::vector<LiveEntry> entries, reader->List(all));
  RETURN_IF_ERROR(Caught([&] { return plan.Match(entries); }));
  StagingSink sink(&plan);
  LoadedLiveState loaded;
  ASSIGN_OR_RETURN(const VisitedState copied,
                   CopyLiveState(options.reader, reader.get(), plan.Query(entries.size()), &sink));
  loaded.version = copied.version;
  loaded.is_mapped = copied.is_mapped;
  // The last: until here an error leaves the module as it was.
  RETURN_IF_ERROR(Caught([&plan] { return plan.Apply(); }));
  loaded.missing = std::move(plan.missing);
  loaded.unexpected = std::move(plan.unexpected);
  return loaded;
}

}  // namespace tessera
