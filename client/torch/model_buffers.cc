#include "client/torch/model_buffers.h"

#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "client/cpp/session_buffers.h"

namespace tessera {
namespace {

using IgnoredModules = std::set<const torch::nn::Module*>;

void Collect(const torch::nn::Module& module, const std::string& prefix,
             const IgnoredModules& ignored, std::vector<BufferSpec>* specs,
             std::vector<torch::Tensor>* tensors) {
  if (ignored.count(&module) > 0) return;
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    const torch::Tensor& tensor = item.value();
    if (!tensor.defined() || tensor.layout() != torch::kStrided) continue;
    const std::optional<StoredDType> dtype = StoredDTypeOf(tensor.scalar_type());
    if (!dtype.has_value()) continue;
    specs->push_back({absl::StrCat(prefix, item.key()), *dtype, tensor.sizes().vec()});
    tensors->push_back(tensor);
  }
  for (const auto& child : module.named_children())
    Collect(*child.value(), absl::StrCat(prefix, child.key(), "."), ignored, specs, tensors);
}

class Publisher {
 public:
  Publisher(Session* session, std::vector<torch::Tensor> buffers) : session_(session) {
    for (torch::Tensor& tensor : buffers) {
      Buffer& buffer = buffers_.emplace_back();
      buffer.type = tensor.scalar_type();
      buffer.tensor = std::move(tensor);
    }
  }

  absl::Status Stage() {
    try {
      return StageChanged();
    } catch (const c10::Error& error) {  // No memory, perhaps.
      return absl::ResourceExhaustedError(
          absl::StrCat("buffers cannot be published: ", error.what_without_backtrace()));
    }
  }

 private:
  absl::Status StageChanged() {
    const torch::NoGradGuard no_grad;
    std::vector<int> elsewhere;  // On a GPU: copied together.
    std::vector<torch::Tensor> bytes;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      Buffer& buffer = buffers_[i];
      if (buffer.tensor.is_meta() || !HasChanged(i)) continue;
      RETURN_IF_ERROR(Check(i));
      const torch::Tensor values = buffer.tensor.detach().to(buffer.type).contiguous();
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

  struct Buffer {
    torch::Tensor tensor;
    torch::ScalarType type = torch::kFloat;  // Declared.
    bool is_set = false;                     // By this trainer.
    const void* memory = nullptr;            // When it was set, as the version.
    int64_t version = 0;
    uint64_t sequence = 0;  // Of what this trainer set.
  };

  static int64_t VersionOf(const torch::Tensor& tensor) {
    return tensor.is_inference() ? -1 : static_cast<int64_t>(tensor._version());
  }

  bool HasChanged(size_t i) const {
    const Buffer& buffer = buffers_[i];
    if (!buffer.is_set || static_cast<int64_t>(buffer.tensor.nbytes()) <= kMaxComparedBytes)
      return true;  // Or may have.
    // A load has set it since, of which the trainer need not have heard.
    if (SessionBuffers(session_).sequence(static_cast<int>(i)) != buffer.sequence) return true;
    const int64_t version = VersionOf(buffer.tensor);
    return version < 0 || version != buffer.version || buffer.tensor.data_ptr() != buffer.memory;
  }

  absl::Status Check(size_t i) const {
    const BufferSpec& spec = session_->layout().buffers[i];
    const torch::Tensor& tensor = buffers_[i].tensor;
    const bool is_floating = torch::isFloatingType(buffers_[i].type);
    const bool same_kind =
        tensor.scalar_type() == buffers_[i].type || (is_floating && tensor.is_floating_point());
    if (tensor.sizes().vec() == spec.shape && same_kind) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("buffer '", spec.name,
                     "' has another shape or dtype than when the model was attached: it "
                     "cannot be published (AttachOptions::publish_buffers)"));
  }

  absl::Status Set(size_t i, absl::string_view values) {
    Buffer& buffer = buffers_[i];
    SessionBuffers published(session_);
    const bool compare = buffer.is_set && values.size() <= kMaxComparedBytes;
    if (!compare || !published.Has(static_cast<int>(i), values))
      RETURN_IF_ERROR(published.Set(static_cast<int>(i), values));
    buffer.is_set = true;
    buffer.memory = buffer.tensor.data_ptr();
    buffer.version = VersionOf(buffer.tensor);
    buffer.sequence = published.sequence(static_cast<int>(i));
    return absl::OkStatus();
  }

  Session* const session_;
  std::vector<Buffer> buffers_;
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

void PublishBuffers(Session* session, std::vector<torch::Tensor> buffers) {
  auto publisher = std::make_shared<Publisher>(session, std::move(buffers));
  SessionBuffers(session).OnVersion([publisher] { return publisher->Stage(); });
}

}  // namespace tessera
