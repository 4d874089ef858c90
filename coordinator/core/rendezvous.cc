#include "coordinator/core/rendezvous.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera::coordinator {

absl::Status Rendezvous::CheckPut(absl::string_view key, absl::string_view value,
                                  bool* is_new) const {
  *is_new = false;
  auto it = values_.find(key);
  if (it != values_.end()) {
    if (*it->second == value) return absl::OkStatus();
    return absl::AlreadyExistsError(absl::StrCat("key '", key, "' holds another value"));
  }
  if (static_cast<int64_t>(values_.size()) >= kMaxValuesPerEpoch) {
    return absl::ResourceExhaustedError(
        absl::StrCat("key '", key, "': the epoch holds ", kMaxValuesPerEpoch, " values already"));
  }
  *is_new = true;
  return absl::OkStatus();
}

void Rendezvous::Put(std::string key, std::string value) {
  values_[std::move(key)] = std::make_shared<const std::string>(std::move(value));
}

std::shared_ptr<const std::string> Rendezvous::Get(absl::string_view key) const {
  auto it = values_.find(key);
  return it == values_.end() ? nullptr : it->second;
}

}  // namespace tessera::coordinator
