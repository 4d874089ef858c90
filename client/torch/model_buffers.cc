#include "client/torch/model_buffers.h"

#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "client/session/session_buffers.h"
#include "client/torch/trainer_tensors.h"

namespace tessera {
namespace {

using IgnoredModules = std::set<const torch::nn::Module*>;

void Collect(const torch::nn::Module& module, const std::string& prefix,
             const IgnoredModules& ignored, std::vector<BufferSpec>* specs,
             std::vector<torch::Tensor>* tensors) {
  if (ignored.count(&module) > 0) return;
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    const torch::Tensor& tensor = item.value();
    // Files have no such layout.
    if (!tensor.defined() || tensor.layout() != torch::kStrided) continue;
    const std::optional<StoredDType> dtype = StoredDTypeOf(tensor.scalar_type());
    if (!dtype.has_value()) continue;
    specs->push_back({absl::StrCat(prefix, item.key()), *dtype, tensor.sizes().vec()});
    tensors->push_back(tensor);
  }
  for (const auto& child : module.named_children())
    Collect(*child.value(), absl::StrCat(prefix, child.key(), "."), ignored, specs, tensors);
}

// The buffers of one trainer, between its module and the session's memory.
class BufferKeeper {
 public:
  BufferKeeper(Session* session, std::vector<torch::Tensor> buffers) : published_(session) {
    for (torch::Tensor& tensor : buffers) {
      Buffer& buffer = buffers_.emplace_back();
      buffer.type = tensor.scalar_type();
      buffer.tensor = std::move(tensor);
      buffer.spec = &session->layout().buffers[buffers_.size() - 1];
      // No memory of its own, so there is nothing to publish.
      if (buffer.tensor.is_meta()) continue;
      // A successor's module has the same, so only readers want it: rank 0's.
      const bool may_stay_unset =
          session->rank() != 0 && published_.sequence(static_cast<int>(buffers_.size()) - 1) == 0;
      if (may_stay_unset) Remember(&buffer, 0);
    }
  }

  // Sets what has changed, or returns an earlier error that a hook could not return.
  absl::Status Stage() {
    // Where a hook could not return an error, the next stage does.
    RETURN_IF_ERROR(std::exchange(trouble_, absl::OkStatus()));
    return Caught([this] { return StageChanged(); });
  }

  // Gives the module what was put or loaded.
  void Take() {
    if (restoring_) return;  // All are given, and Restore() comes again.
    Note([this] {
      for (size_t i = 0; i < buffers_.size(); ++i) {
        if (!published_.IsGiven(static_cast<int>(i))) continue;
        // It is in the module already.
        if (published_.sequence(static_cast<int>(i)) == buffers_[i].taken) continue;
        // What was kept for the step is older than what was given.
        buffers_[i].before = torch::Tensor();
        TakeOne(i);
      }
      return absl::OkStatus();
    });
  }

  // Keeps what the module has where nothing else does.
  void BeginStep() {
    restoring_ = false;
    Note([this] { return KeepBefore(); });
  }

  // Gives the module what it had when the step under way began; where none is, the state's.
  absl::Status Restore() {
    // Still set after an error: Take then leaves all to the next Restore.
    restoring_ = true;
    RETURN_IF_ERROR(published_.Restore());
    RETURN_IF_ERROR(Caught([this] { return TakeBack(); }));
    restoring_ = false;
    return absl::OkStatus();
  }

 private:
  static absl::Status Caught(absl::FunctionRef<absl::Status()> body) {
    try {
      return body();
    } catch (const c10::Error& error) {  // No memory, perhaps.
      return absl::ResourceExhaustedError(
          absl::StrCat("buffers cannot be kept: ", error.what_without_backtrace()));
    }
  }
  void Note(absl::FunctionRef<absl::Status()> body) {
    // The step goes on. Stage returns the error before anything is published.
    const absl::Status status = Caught(body);
    if (trouble_.ok()) trouble_ = status;
  }

  absl::Status KeepBefore() {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      Buffer& buffer = buffers_[i];
      if (buffer.tensor.is_meta()) continue;
      // The memory has the same bytes, so that no copy is needed.
      if (!MayHaveChanged(i)) {
        buffer.before = torch::Tensor();
      } else if (buffer.before.defined() && buffer.before.sizes() == buffer.tensor.sizes() &&
                 buffer.before.scalar_type() == buffer.tensor.scalar_type()) {
        buffer.before.copy_(buffer.tensor);
      } else {
        buffer.before = buffer.tensor.detach().clone();
      }
    }
    return absl::OkStatus();
  }

  absl::Status TakeBack() {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      Buffer& buffer = buffers_[i];
      const int number = static_cast<int>(i);
      // The memory has what the module had then.
      if (!buffer.before.defined()) {
        if (published_.IsGiven(number)) TakeOne(i);
        continue;
      }
      // The state has other bytes, which the next version will not have.
      if (published_.IsGiven(number)) buffer.taken = published_.sequence(number);
      RETURN_IF_ERROR(Check(buffer));
      if (buffer.before.sizes() == buffer.tensor.sizes()) CopyInto(&buffer, buffer.before);
    }
    return absl::OkStatus();
  }

  struct Buffer {
    torch::Tensor tensor;
    torch::ScalarType type = torch::kFloat;  // Declared.
    const BufferSpec* spec = nullptr;
    // When the module and the session's memory were last equal: who set it there, ...
    uint64_t sequence = kNever;
    const void* memory = nullptr;  // ... and whether the module's was written to since.
    int64_t version = 0;
    uint64_t taken = 0;    // Of what was given and is in the module, or not wanted there.
    torch::Tensor before;  // As the step under way began; undefined: as the memory has it.
  };
  static constexpr uint64_t kNever = ~uint64_t{0};

  static int64_t VersionOf(const torch::Tensor& tensor) {
    return tensor.is_inference() ? -1 : static_cast<int64_t>(tensor._version());
  }

  static void Remember(Buffer* buffer, uint64_t sequence) {
    buffer->sequence = sequence;
    buffer->memory = buffer->tensor.data_ptr();
    buffer->version = VersionOf(buffer->tensor);
  }

  absl::Status StageChanged() {
    const torch::NoGradGuard no_grad;
    std::vector<int> elsewhere;  // On a GPU: copied together.
    std::vector<torch::Tensor> bytes;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      Buffer& buffer = buffers_[i];
      if (buffer.tensor.is_meta() || !MayHaveChanged(i)) continue;
      RETURN_IF_ERROR(Check(buffer));
      const torch::Tensor values =
          buffer.tensor.detach().resolve_conj().resolve_neg().to(buffer.type).contiguous();
      if (values.device().is_cpu()) {
        RETURN_IF_ERROR(Set(i, {static_cast<const char*>(values.data_ptr()), values.nbytes()}));
      } else if (values.numel() > 0) {
        elsewhere.push_back(static_cast<int>(i));
        bytes.push_back(values.flatten().view(torch::kByte));
      }
    }
    if (elsewhere.empty()) return absl::OkStatus();
    const torch::Tensor all = torch::cat(bytes).cpu();
    const char* at = static_cast<const char*>(all.data_ptr());
    for (size_t i = 0; i < elsewhere.size(); ++i) {
      const auto size = static_cast<size_t>(bytes[i].numel());
      RETURN_IF_ERROR(Set(elsewhere[i], {at, size}));
      at += size;
    }
    return absl::OkStatus();
  }

  // Since the memory had what the module has.
  bool MayHaveChanged(size_t i) const {
    const Buffer& buffer = buffers_[i];
    // Small ones are compared in Set.
    if (static_cast<int64_t>(buffer.tensor.nbytes()) <= kMaxComparedBytes) return true;
    return published_.sequence(static_cast<int>(i)) != buffer.sequence || WasWrittenTo(buffer);
  }

  static bool WasWrittenTo(const Buffer& buffer) {
    const int64_t version = VersionOf(buffer.tensor);
    // Without a counter, as in inference tensors, it may have been.
    return version < 0 || version != buffer.version || buffer.tensor.data_ptr() != buffer.memory;
  }

  static bool Fits(const Buffer& buffer) {
    // Another floating-point type is converted: a module may be in half precision meanwhile.
    const bool same_kind =
        buffer.tensor.scalar_type() == buffer.type ||
        (torch::isFloatingType(buffer.type) && buffer.tensor.is_floating_point());
    return buffer.tensor.sizes().vec() == buffer.spec->shape && same_kind;
  }

  static absl::Status Check(const Buffer& buffer) {
    if (Fits(buffer)) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("buffer '", buffer.spec->name,
                     "' has another shape or dtype than when the model was attached: it "
                     "cannot be published (AttachOptions::publish_buffers)"));
  }

  absl::Status Set(size_t i, absl::string_view values) {
    Buffer& buffer = buffers_[i];
    const int number = static_cast<int>(i);
    // What was never set has nothing to compare with.
    const bool compare = buffer.sequence != kNever && values.size() <= kMaxComparedBytes;
    if (!compare || !published_.Has(number, values))
      RETURN_IF_ERROR(published_.Set(number, values));
    // Read after Set, which may have advanced it.
    Remember(&buffer, published_.sequence(number));
    return absl::OkStatus();
  }

  static void CopyInto(Buffer* buffer, const torch::Tensor& values) {
    std::optional<c10::InferenceMode> inference;
    if (buffer->tensor.is_inference()) inference.emplace();
    SetTensor(buffer->tensor, values);
  }

  // Requires that it was given. One that does not fit any more is left to the next Stage().
  void TakeOne(size_t i) {
    const torch::NoGradGuard no_grad;
    Buffer& buffer = buffers_[i];
    if (buffer.tensor.is_meta() || !Fits(buffer)) return;
    const int number = static_cast<int>(i);
    const uint64_t sequence = published_.sequence(number);
    if (MayHaveChanged(i)) {
      const absl::string_view bytes = published_.Get(number);
      const bool is_bool = buffer.type == torch::kBool;
      torch::Tensor values = torch::empty(buffer.spec->shape, is_bool ? torch::kByte : buffer.type);
      if (!bytes.empty()) memcpy(values.data_ptr(), bytes.data(), bytes.size());
      if (is_bool) values = values.ne(0);  // A bool's byte must be 0 or 1.
      CopyInto(&buffer, values);
    }
    Remember(&buffer, sequence);
    buffer.taken = sequence;  // Where that threw it is tried again.
  }

  SessionBuffers published_;
  std::vector<Buffer> buffers_;
  bool restoring_ = false;
  absl::Status trouble_;  // Of a hook that cannot return an error.
};

}  // namespace

std::optional<StoredDType> StoredDTypeOf(torch::ScalarType type) {
  switch (type) {
    case torch::kFloat:
      return StoredDType::kF32;
    case torch::kDouble:
      return StoredDType::kF64;
    case torch::kBFloat16:
      return StoredDType::kBf16;
    case torch::kHalf:
      return StoredDType::kF16;
    case torch::kLong:
      return StoredDType::kI64;
    case torch::kInt:
      return StoredDType::kI32;
    case torch::kShort:
      return StoredDType::kI16;
    case torch::kChar:
      return StoredDType::kI8;
    case torch::kByte:
      return StoredDType::kU8;
    case torch::kBool:
      return StoredDType::kBool;
    case torch::kComplexFloat:
      return StoredDType::kC64;
    default:
      return std::nullopt;
  }
}

std::vector<torch::Tensor> DeclareBuffers(const torch::nn::Module& root,
                                          const IgnoredStates& ignored, ModuleUnits* units) {
  IgnoredModules modules;
  for (const auto& module : ignored.modules) modules.insert(module.get());
  std::vector<torch::Tensor> tensors;
  Collect(root, "", modules, &units->model.buffers, &tensors);
  return tensors;
}

void KeepBuffers(Session* session, std::vector<torch::Tensor> buffers) {
  auto keeper = std::make_shared<BufferKeeper>(session, std::move(buffers));
  BufferHooks hooks;
  hooks.stage = [keeper] { return keeper->Stage(); };
  hooks.take = [keeper] { keeper->Take(); };
  hooks.begin_step = [keeper] { keeper->BeginStep(); };
  hooks.restore = [keeper] { return keeper->Restore(); };
  SessionBuffers(session).SetHooks(std::move(hooks));
}

}  // namespace tessera
