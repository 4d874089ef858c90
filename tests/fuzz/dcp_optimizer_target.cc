// A folder of DCP's with an optimizer's state. It is read by its path, so it is one.
#include <stdlib.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/check.h"
#include "checkpoint/dcp/dcp_model.h"
#include "checkpoint/dcp/dcp_optimizer.h"
#include "checkpoint/dcp/optimizer_ids.h"
#include "layout/values.h"
#include "tests/fuzz/fuzz_targets.h"

namespace tessera::fuzz {
namespace {

// As many bytes as their length says and there are, which are taken from `bytes`.
absl::string_view Next(absl::string_view* bytes) {
  uint32_t size = 0;
  for (int i = 0; i < 4 && i < static_cast<int>(bytes->size()); ++i)
    size |= uint32_t{static_cast<unsigned char>((*bytes)[i])} << (8 * i);
  bytes->remove_prefix(std::min<size_t>(4, bytes->size()));
  const absl::string_view next = bytes->substr(0, size);
  bytes->remove_prefix(next.size());
  return next;
}

void WriteFile(const std::string& path, absl::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), bytes.size());
}

class Folder {
 public:
  explicit Folder(absl::string_view bytes) {
    TESSERA_CHECK(mkdtemp(path_.data()) != nullptr);
    for (const char* name : {".metadata", "__0_0.distcp", "__1_0.distcp"})
      WriteFile(absl::StrCat(path_, "/", name), Next(&bytes));
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/tessera-fuzz-XXXXXX";
};

// Those elements that a rank would read, of a tensor that it has a place for.
void ReadSome(const dcp::DcpModel& model, const std::string& tensor, const TensorInfo& info) {
  constexpr int64_t kMost = 1 << 12;
  const absl::StatusOr<int64_t> numel = NumelOf(info);
  TESSERA_CHECK(numel.ok());
  std::vector<float> values(std::min(*numel, kMost));
  (void)model.ReadSlice(tensor, *numel - static_cast<int64_t>(values.size()),
                        absl::MakeSpan(values));
}

// Where keys are ids: each gets the name of its place, and none is lost.
void CheckNames(const dcp::OptimizerState& state) {
  if (!dcp::MayBeIds(state)) return;
  const std::vector<std::string> of_ids = {"a", "b", "c", "d"};
  for (const dcp::NamesOfIds& names :
       {dcp::NamesOfIds{{"a", "b"}, {"c", "d"}}, dcp::NamesOfIds{{"a", "b", "c", "d"}}}) {
    dcp::OptimizerState named = state;
    if (!dcp::NameIds(names, &named).ok()) continue;
    TESSERA_CHECK(named.parameters.size() == state.parameters.size());
    TESSERA_CHECK(named.numbers.size() == of_ids.size());
    for (size_t id = 0; id < of_ids.size(); ++id) {
      const auto numbers = state.numbers.find(absl::StrCat(id));
      TESSERA_CHECK(numbers != state.numbers.end());
      TESSERA_CHECK(named.numbers.at(of_ids[id]) == numbers->second);
    }
  }
  dcp::OptimizerState unnamed = state;
  TESSERA_CHECK(!dcp::NameIds({}, &unnamed).ok());
}

}  // namespace

// Steps are counts, moments are tensors of the folder, and numbers are there.
void DcpOptimizer(absl::string_view bytes) {
  const Folder folder(bytes);
  const auto model = dcp::DcpModel::Open(folder.path());
  if (!model.ok()) return;
  for (const char* prefix : {"optim.", ""}) {
    const auto state = dcp::ReadOptimizerState(folder.path(), *model, prefix);
    if (!state.ok()) continue;
    CheckNames(*state);
    for (const auto& [name, parameter] : state->parameters) {
      TESSERA_CHECK(!name.empty());
      TESSERA_CHECK(!parameter.step.has_value() || *parameter.step >= 0);
      for (const auto& [moment, tensor] : parameter.moments) {
        const auto info = model->tensors().find(tensor);
        TESSERA_CHECK(info != model->tensors().end());
        ReadSome(*model, tensor, info->second);
      }
    }
    for (const auto& [name, numbers] : state->numbers) {
      TESSERA_CHECK(numbers != nullptr);
      for (const auto& [key, values] : *numbers) TESSERA_CHECK(!key.empty() && !values.empty());
    }
  }
}

}  // namespace tessera::fuzz
