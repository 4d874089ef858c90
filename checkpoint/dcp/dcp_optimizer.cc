#include "checkpoint/dcp/dcp_optimizer.h"

#include <cmath>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "checkpoint/dcp/dcp_metadata.h"
#include "checkpoint/dcp/dcp_model.h"
#include "checkpoint/dcp/torch_object.h"
#include "checkpoint/safetensors/element_reader.h"

namespace tessera::dcp {
namespace {

using Ref = Pickle::Ref;

constexpr double kMostSteps = 4'000'000'000;  // As of every checkpoint.

absl::Status Bad(absl::string_view item, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("optimizer state: '", absl::Utf8SafeCEscape(item), "' ", why));
}

// Where the non-tensor objects with the prefix are.
absl::StatusOr<std::map<std::string, StoredObject>> FindObjects(const std::string& folder,
                                                                const std::string& prefix) {
  ASSIGN_OR_RETURN(const OpenFile file, OpenRegularFile(absl::StrCat(folder, "/", kMetadataName)));
  ASSIGN_OR_RETURN(const std::string pickle, ReadSmallFile(file, kMaxMetadataBytes));
  // A second time: DcpModel decoded tensors alone, and most loads need no more.
  absl::StatusOr<Contents> contents = DecodeContents(pickle);
  if (!contents.ok()) return Annotate(contents.status(), file.path);
  std::map<std::string, StoredObject> objects;
  for (const auto& [name, stored] : contents->objects) {
    if (absl::StartsWith(name, prefix)) objects.emplace(name, stored);
  }
  return objects;
}

// bool is a number in Python.
std::optional<double> NumberOf(const Ref& value) {
  switch (value.kind()) {
    case PickleKind::kBool:
    case PickleKind::kInt:
      return static_cast<double>(value.number());
    case PickleKind::kFloat:
      return value.real();
    default:
      return std::nullopt;
  }
}

// One number, or a tuple or list of some; none: it is something else.
std::vector<double> NumbersOf(const Ref& value) {
  if (const std::optional<double> number = NumberOf(value)) return {*number};
  constexpr size_t kMost = 16;
  const bool is_row = value.kind() == PickleKind::kTuple || value.kind() == PickleKind::kList;
  std::vector<double> numbers;
  // An object may be a list of any length.
  for (size_t i = 0; is_row && value.size() <= kMost && i < value.size(); ++i) {
    const std::optional<double> number = NumberOf(value.item(i));
    if (!number.has_value()) return {};
    numbers.push_back(*number);
  }
  return numbers;
}

// "a.b.c" as "a.b" and "c".
struct SplitName {
  std::string front, last;
};
std::optional<SplitName> SplitAtLastDot(absl::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == absl::string_view::npos || dot == 0 || dot + 1 == name.size()) return std::nullopt;
  return SplitName{std::string(name.substr(0, dot)), std::string(name.substr(dot + 1))};
}

template <typename Number>
absl::StatusOr<double> ReadStoredNumber(const ModelSource& tensors, const std::string& name) {
  Number number;
  RETURN_IF_ERROR(tensors.ReadStored(name, 0, 1, reinterpret_cast<char*>(&number)));
  return static_cast<double>(number);
}

class Reader {
 public:
  Reader(const std::string& folder, const ModelSource& tensors, const std::string& prefix,
         const std::map<std::string, StoredObject>& objects)
      : folder_(folder), tensors_(tensors), prefix_(prefix), objects_(objects) {}

  absl::StatusOr<OptimizerState> Read() {
    is_list_ = objects_.count(absl::StrCat(prefix_, "param_groups.0.params")) > 0;
    bool found = false;
    for (const auto& [name, info] : tensors_.tensors()) {
      if (!absl::StartsWith(name, prefix_)) continue;
      found = true;
      RETURN_IF_ERROR(AddTensor(name, info));
    }
    // One at a time: of an object only its numbers and names are kept, however large it is decoded.
    for (const auto& [name, stored] : objects_) {
      found = true;
      ASSIGN_OR_RETURN(const OpenFile data,
                       OpenRegularFile(absl::StrCat(folder_, "/", stored.file)));
      const absl::StatusOr<TorchObject> object = TorchObject::Read(data, stored.item);
      if (!object.ok()) return Annotate(object.status(), absl::StrCat("object '", name, "'"));
      RETURN_IF_ERROR(AddObject(name, object->root()));
    }
    if (!found) {
      return absl::NotFoundError(
          absl::StrCat("optimizer state: the folder holds nothing under '", prefix_, "'"));
    }
    GiveGroups();
    return std::move(state_);
  }

 private:
  // What follows "PREFIXstate." or "PREFIXparam_groups.", if either is there.
  std::optional<absl::string_view> Behind(const std::string& name, absl::string_view what) const {
    absl::string_view rest = absl::string_view(name).substr(prefix_.size());
    if (!absl::ConsumePrefix(&rest, what)) return std::nullopt;
    return rest;
  }

  absl::StatusOr<double> Scalar(const std::string& name, const TensorInfo& info) const {
    // One element of any rank.
    for (const int64_t size : info.shape) {
      if (size != 1) return Bad(name, "is not a number");
    }
    if (info.dtype == StoredDType::kI64) return ReadStoredNumber<int64_t>(tensors_, name);
    if (info.dtype == StoredDType::kI32) return ReadStoredNumber<int32_t>(tensors_, name);
    if (info.dtype == StoredDType::kBool) return ReadStoredNumber<uint8_t>(tensors_, name);
    double number = 0;
    RETURN_IF_ERROR(tensors_.ReadSlice(name, 0, Values(absl::MakeSpan(&number, 1))));
    return number;
  }

  absl::Status SetStep(const std::string& name, const std::string& parameter, double step) {
    // Not a number is not what it rounds to.
    if (!(step >= 0 && step <= kMostSteps && std::floor(step) == step))
      return Bad(name, absl::StrCat("is ", step, ", no count of steps"));
    state_.parameters[parameter].step = static_cast<int64_t>(step);
    return absl::OkStatus();
  }

  absl::Status AddTensor(const std::string& name, const TensorInfo& info) {
    if (const auto rest = Behind(name, "state.")) {
      const auto split = SplitAtLastDot(*rest);
      if (!split.has_value()) return Bad(name, "does not belong to a parameter");
      if (split->last == "step") {
        ASSIGN_OR_RETURN(const double step, Scalar(name, info));
        return SetStep(name, split->front, step);
      }
      state_.parameters[split->front].moments[split->last] = name;
    } else if (const auto rest = Behind(name, "param_groups.")) {
      ASSIGN_OR_RETURN(const double number, Scalar(name, info));
      return AddNumbers(name, *rest, {number});
    }
    return absl::OkStatus();
  }

  absl::Status AddObject(const std::string& name, const Ref& value) {
    if (const auto rest = Behind(name, "state.")) {
      if (value.kind() == PickleKind::kNone) return absl::OkStatus();  // A moment not there yet.
      const auto split = SplitAtLastDot(*rest);
      const std::optional<double> number = NumberOf(value);
      if (!split.has_value() || split->last != "step" || !number.has_value())
        return Bad(name, "is not a tensor");
      return SetStep(name, split->front, *number);
    }
    const auto rest = Behind(name, "param_groups.");
    if (!rest.has_value()) return absl::OkStatus();
    if (is_list_ && absl::EndsWith(*rest, ".params")) return AddMembers(name, *rest, value);
    return AddNumbers(name, *rest, NumbersOf(value));
  }

  // Of a group, or flattened of a parameter.
  absl::Status AddNumbers(const std::string& name, absl::string_view rest,
                          std::vector<double> numbers) {
    const auto split = SplitAtLastDot(rest);
    if (!split.has_value()) return Bad(name, "does not belong to a param group");
    if (!numbers.empty()) numbers_[split->front][split->last] = std::move(numbers);
    return absl::OkStatus();
  }

  absl::Status AddMembers(const std::string& name, absl::string_view rest, const Ref& value) {
    if (value.kind() != PickleKind::kList) return Bad(name, "is not a list of parameters");
    const auto split = SplitAtLastDot(rest);
    if (!split.has_value()) return Bad(name, "does not belong to a param group");
    for (size_t i = 0; i < value.size(); ++i) {
      const Ref member = value.item(i);
      std::string of_group;
      if (member.kind() == PickleKind::kInt) {
        of_group = absl::StrCat(member.number());
      } else if (member.kind() == PickleKind::kString) {
        of_group = std::string(member.text());
      } else {
        return Bad(name, "is not a list of parameters");
      }
      // A parameter in two groups would have two learning rates.
      if (!group_of_.emplace(of_group, split->front).second)
        return Bad(of_group, "is in two param groups");
    }
    return absl::OkStatus();
  }

  void GiveGroups() {
    std::map<std::string, std::shared_ptr<const OptimizerState::Numbers>> shared;
    // Shared, since a group may have many members.
    for (auto& [owner, numbers] : numbers_)
      shared[owner] = std::make_shared<const OptimizerState::Numbers>(std::move(numbers));
    if (!is_list_) {
      state_.numbers = std::move(shared);
      return;
    }
    const auto none = std::make_shared<const OptimizerState::Numbers>();
    for (const auto& [member, group] : group_of_) {
      const auto numbers = shared.find(group);
      state_.numbers[member] = numbers == shared.end() ? none : numbers->second;
    }
  }

  const std::string& folder_;
  const ModelSource& tensors_;
  const std::string& prefix_;
  const std::map<std::string, StoredObject>& objects_;
  bool is_list_ = false;  // Of groups, not flattened.
  OptimizerState state_;
  std::map<std::string, OptimizerState::Numbers> numbers_;  // By group, or by parameter.
  std::map<std::string, std::string> group_of_;             // By member.
};

}  // namespace

absl::StatusOr<OptimizerState> ReadOptimizerState(const std::string& folder,
                                                  const ModelSource& tensors,
                                                  const std::string& prefix) {
  ASSIGN_OR_RETURN(const auto objects, FindObjects(folder, prefix));
  absl::StatusOr<OptimizerState> state = Reader(folder, tensors, prefix, objects).Read();
  if (!state.ok()) return Annotate(state.status(), folder);
  return state;
}

}  // namespace tessera::dcp
