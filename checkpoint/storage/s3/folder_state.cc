#include "checkpoint/storage/s3/folder_state.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/random_bytes.h"
#include "base/status_macros.h"
#include "checkpoint/safetensors/strict_json.h"
#include "nlohmann/json.hpp"

namespace tessera::s3 {
namespace {

constexpr char kFormat[] = "tessera.folder.1";
constexpr absl::string_view kSavePrefix = "save-";
constexpr absl::string_view kPartialSuffix = ".partial";
constexpr int kIdBytes = 16;

bool IsId(absl::string_view id) {
  return id.size() == 2 * kIdBytes && std::all_of(id.begin(), id.end(), [](unsigned char c) {
           return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f');
         });
}

nlohmann::ordered_json EncodeId(const std::string& id) {
  return id.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(id);
}

bool ReadId(const nlohmann::json& json, const char* member, std::string* id) {
  const auto found = json.find(member);
  if (found == json.end()) return false;
  if (found->is_null()) return true;
  if (!found->is_string()) return false;
  *id = found->get<std::string>();
  return IsId(*id);
}

S3Path StatePath(const S3Path& folder) {
  return {folder.bucket, absl::StrCat(folder.key, "/", kStateName)};
}

}  // namespace

std::string EncodeState(const FolderState& state) {
  // A change of its own each time: two that say the same are not the same version.
  return nlohmann::ordered_json({{"format", kFormat},
                                 {"published", EncodeId(state.published)},
                                 {"partial", EncodeId(state.partial)},
                                 {"change", RandomHex(kIdBytes)}})
      .dump();
}

absl::StatusOr<FolderState> DecodeState(absl::string_view text) {
  FolderState state;
  const absl::StatusOr<nlohmann::json> json = ParseStrictJsonObject(text);
  const bool is_known = json.ok() && json->contains("format") && (*json)["format"] == kFormat;
  if (is_known && ReadId(*json, "published", &state.published) &&
      ReadId(*json, "partial", &state.partial)) {
    return state;
  }
  return absl::DataLossError("it does not say which files a folder has");
}

std::string NewFolderId() { return RandomHex(kIdBytes); }

std::string PrefixOf(const std::string& folder_key, const std::string& id) {
  return absl::StrCat(folder_key, "/", kSavePrefix, id, "/");
}

bool IsHidden(absl::string_view name) {
  return name == kStateName || (absl::ConsumePrefix(&name, kSavePrefix) && IsId(name));
}

absl::StatusOr<FolderState> ReadState(const S3Client& client, const S3Path& folder) {
  const S3Path path = StatePath(folder);
  ASSIGN_OR_RETURN(const std::optional<SmallObject> object, client.Get(path));
  if (!object.has_value()) return FolderState();
  absl::StatusOr<FolderState> state = DecodeState(object->bytes);
  if (!state.ok()) return Annotate(state.status(), s3::PathOf(path));
  state->etag = object->info.etag;
  state->changed_at = object->info.changed_at;
  // Without it no change could be on the condition that this is still the version.
  if (!state->etag.empty()) return state;
  return absl::InternalError(absl::StrCat(s3::PathOf(path), ": the store's answer has no ETag"));
}

absl::StatusOr<bool> ChangeState(const S3Client& client, const S3Path& folder,
                                 const FolderState& from, FolderState to) {
  // An empty ETag stands for a state that does not exist yet.
  return client.PutIf(StatePath(folder), EncodeState(to), from.etag);
}

void RemoveEmptyState(const S3Client& client, const S3Path& folder) {
  const absl::StatusOr<FolderState> state = ReadState(client, folder);
  if (!state.ok() || !state->exists() || !state->published.empty() || !state->partial.empty())
    return;
  // Another save may name its files there at any time.
  client.DeleteOnce(StatePath(folder), state->etag).IgnoreError();
}

std::pair<std::string, bool> BaseOf(const std::string& folder_key) {
  absl::string_view base = folder_key;
  const bool is_partial = absl::ConsumeSuffix(&base, kPartialSuffix);
  return {std::string(base), is_partial};
}

}  // namespace tessera::s3
