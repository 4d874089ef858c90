#include "client/torch/module_states.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "client/session/session_setup.h"
#include "client/torch/summon_full_params.h"
#include "client/torch/torch_status.h"
#include "client/torch/trainer_tensors.h"

namespace tessera {
namespace {

struct NamedState {
  std::string name;  // "parameter 'layers.0.weight'"
  torch::Tensor tensor;
};

void CollectBuffers(const torch::nn::Module& module, const std::string& prefix,
                    const std::set<const torch::nn::Module*>& ignored,
                    std::vector<NamedState>* found) {
  if (ignored.count(&module) > 0) return;
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    if (item.value().defined())
      found->push_back({absl::StrCat("buffer '", prefix, item.key(), "'"), item.value()});
  }
  for (const auto& child : module.named_children())
    CollectBuffers(*child.value(), absl::StrCat(prefix, child.key(), "."), ignored, found);
}

std::vector<NamedState> BuffersOf(const torch::nn::Module& root, const AttachOptions& attach) {
  std::set<const torch::nn::Module*> ignored;
  for (const auto& module : attach.ignored.modules) ignored.insert(module.get());
  std::vector<NamedState> found;
  CollectBuffers(root, "", ignored, &found);
  return found;
}

const TensorSpec& SpecOf(const Session& session, int unit, int parameter) {
  return session.layout().units[unit].flat.parameters()[parameter].spec;
}

// A word at a time; against mistakes, not against attackers. Every byte counts, and so do shape and
// dtype.
uint64_t DigestOf(const torch::Tensor& tensor) {
  uint64_t digest = 0x9e3779b97f4a7c15;
  const auto mix = [&digest](uint64_t word) {
    digest = (digest ^ word) * 0xbf58476d1ce4e5b9;
    digest ^= digest >> 29;
  };
  mix(static_cast<uint64_t>(tensor.scalar_type()));
  for (const int64_t size : tensor.sizes()) mix(size);
  if (tensor.is_meta()) return digest;  // Filled in alike everywhere.
  const torch::Tensor whole = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous();
  const char* bytes = static_cast<const char*>(whole.data_ptr());
  const size_t size = whole.nbytes();
  for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
    uint64_t word = 0;
    memcpy(&word, bytes + at, std::min(sizeof(word), size - at));
    mix(word);
  }
  return digest;
}

template <typename T>
absl::Span<char> BytesOf(std::vector<T>* values) {
  return absl::MakeSpan(reinterpret_cast<char*>(values->data()), values->size() * sizeof(T));
}

// That the ranks have as many states, of the same names: what they exchange next is of one size.
// `digest`: of what else must be alike.
absl::Status CheckAlike(SessionSetup* setup, const Session& session,
                        const std::vector<NamedState>& states, uint64_t digest,
                        absl::string_view different) {
  digest += states.size();
  for (const NamedState& state : states) {
    for (const char c : state.name) digest = digest * 0x100000001b3 + static_cast<unsigned char>(c);
  }
  std::vector<uint64_t> own = {digest}, all(session.config().world_size);
  RETURN_IF_ERROR(setup->AllGather(BytesOf(&own), BytesOf(&all).data()));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return setup->ErrorOfAll(
        absl::FailedPreconditionError(absl::StrCat("ranks 0 and ", rank, " ", different)));
  }
  return absl::OkStatus();
}

constexpr absl::string_view kRemedy =
    ": give all ranks the same seed, or set sync_module_states, or check_module_states = false";

// Compares with rank 0, so that every rank finds what differs first, and in which rank.
absl::Status CompareStates(SessionSetup* setup, const Session& session,
                           const std::vector<NamedState>& states) {
  RETURN_IF_ERROR(CheckAlike(
      setup, session, states, 0,
      absl::StrCat("begin with different states, first in the names of the buffers", kRemedy)));
  std::vector<uint64_t> own;
  for (const NamedState& state : states) own.push_back(DigestOf(state.tensor));
  std::vector<uint64_t> first = own;
  RETURN_IF_ERROR(setup->Broadcast(BytesOf(&first)));
  const int64_t count = states.size();
  int64_t differs = count;
  // From the end, so that the first one that differs remains.
  for (int64_t i = count - 1; i >= 0; --i) {
    if (own[i] != first[i]) differs = i;
  }
  std::vector<int64_t> mine = {differs}, all(session.config().world_size);
  RETURN_IF_ERROR(setup->AllGather(BytesOf(&mine), BytesOf(&all).data()));
  const auto found = std::min_element(all.begin(), all.end());
  // Bounded, because another rank's number becomes an index.
  if (*found >= count || *found < 0) return absl::OkStatus();
  return setup->ErrorOfAll(absl::FailedPreconditionError(
      absl::StrCat("ranks 0 and ", found - all.begin(), " begin with different states, first in ",
                   states[*found].name, kRemedy)));
}

// All ranks have rank 0's then.
absl::Status SyncBuffers(SessionSetup* setup, const Session& session,
                         const std::vector<NamedState>& buffers) {
  uint64_t shapes = 0;
  const auto mix = [&shapes](uint64_t word) { shapes = shapes * 0x100000001b3 + word; };
  for (const NamedState& buffer : buffers) {
    mix(static_cast<uint64_t>(buffer.tensor.scalar_type()));
    for (const int64_t size : buffer.tensor.sizes()) mix(size);
  }
  // Otherwise ranks would take different numbers of pieces, or the bytes of another buffer.
  RETURN_IF_ERROR(CheckAlike(setup, session, buffers, shapes,
                             "have buffers of different names, shapes or dtypes: rank 0's cannot "
                             "be given to all (sync_module_states)"));
  for (const NamedState& buffer : buffers) {
    // A copy: on ranks other than 0 the broadcast writes into it.
    torch::Tensor bytes =
        buffer.tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().clone();
    RETURN_IF_ERROR(
        setup->Broadcast(absl::MakeSpan(static_cast<char*>(bytes.data_ptr()), bytes.nbytes())));
    SetTensor(buffer.tensor, bytes);
  }
  return absl::OkStatus();
}

// Whether this rank can give the requested values.
absl::Status CheckMeta(const Session& session, const ModuleUnits& units,
                       const AttachOptions& attach) {
  // Rank 0 gives the values of all.
  if (attach.sync_module_states && session.rank() != 0) return absl::OkStatus();
  std::vector<std::string> names;
  for (size_t unit = 0; unit < units.parameters.size(); ++unit) {
    for (size_t p = 0; p < units.parameters[unit].size(); ++p) {
      if (units.parameters[unit][p].is_meta()) names.push_back(SpecOf(session, unit, p).name);
    }
  }
  if (!names.empty() && attach.initialize_meta == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("parameters are on the meta device, and there is no initialize_meta: ",
                     absl::StrJoin(names, ", ")));
  }
  return absl::OkStatus();
}

absl::Status CheckBuffers(const std::vector<NamedState>& buffers) {
  for (const NamedState& buffer : buffers) {
    if (buffer.tensor.is_meta())
      return absl::FailedPreconditionError(absl::StrCat(buffer.name, " is on the meta device"));
  }
  return absl::OkStatus();
}

}  // namespace

SliceInitializer InitializedBy(const Initializer& initializer, uint64_t seed) {
  return [=](const TensorSpec& parameter, int64_t begin_elements, Values values) {
    const absl::Status status = ValidateInitializer(initializer, parameter);
    if (status.ok()) FillSlice(initializer, seed, parameter, begin_elements, values);
    return status;
  };
}

void MoveToMeta(torch::nn::Module& module) {
  for (torch::Tensor& parameter : module.parameters()) {
    if (!parameter.is_meta()) ReplaceMemory(parameter, torch::empty_like(parameter, torch::kMeta));
  }
}

absl::Status InitializeJob(Session* session, const ModuleUnits& units,
                           const torch::nn::Module& root, const AttachOptions& attach) {
  SessionSetup setup(session);
  const std::vector<NamedState> buffers = BuffersOf(root, attach);
  const bool from_module = attach.first_values == nullptr;
  absl::Status possible = from_module ? CheckMeta(*session, units, attach) : absl::OkStatus();
  if (possible.ok()) possible = CheckBuffers(buffers);
  // Before any values move, so that all ranks return the same error.
  RETURN_IF_ERROR(setup.AgreeOn(possible));
  if (!from_module) {
    if (attach.sync_module_states) RETURN_IF_ERROR(SyncBuffers(&setup, *session, buffers));
    return attach.first_values(session);
  }
  const auto copy = [&](int unit, int p, int64_t begin, Values values) -> absl::Status {
    const torch::Tensor& tensor = units.parameters[unit][p];
    // On meta there are no values to copy: the user's function makes them.
    if (tensor.is_meta()) return attach.initialize_meta(SpecOf(*session, unit, p), begin, values);
    const int64_t end = begin + static_cast<int64_t>(values.size());
    CopyValues(tensor.detach().flatten().slice(0, begin, end), values);
    return absl::OkStatus();
  };
  // An exception, too, is an error that all ranks agree on.
  const auto fill = [&](int unit, int p, int64_t begin, Values values) {
    return CatchTorch([&] { return copy(unit, p, begin, values); });
  };
  if (attach.sync_module_states) {
    RETURN_IF_ERROR(SyncBuffers(&setup, *session, buffers));
    return setup.InitializeFromRank0(
        [&](int unit, int p, Values values) { return fill(unit, p, 0, values); });
  }
  if (attach.check_module_states) {
    std::vector<NamedState> states;
    for (size_t unit = 0; unit < units.parameters.size(); ++unit) {
      for (size_t p = 0; p < units.parameters[unit].size(); ++p)
        states.push_back({absl::StrCat("parameter '", SpecOf(*session, unit, p).name, "'"),
                          units.parameters[unit][p]});
    }
    states.insert(states.end(), buffers.begin(), buffers.end());
    RETURN_IF_ERROR(CompareStates(&setup, *session, states));
  }
  return setup.InitializeSlices(fill);
}

}  // namespace tessera
