#include "checkpoint/storage/s3/s3_storage.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "checkpoint/storage/s3/parallel_calls.h"
#include "checkpoint/storage/s3/s3_file.h"
#include "checkpoint/storage/s3/unfinished_file.h"

namespace tessera::s3 {
namespace {

constexpr int kStatesAtOnce = 8;
constexpr int kMostChanges = 20;

absl::Status NoFolder(const std::string& path) {
  return absl::NotFoundError(absl::StrCat(path, ": no such folder in the object store"));
}

absl::Status Anothers(const S3Path& folder) {
  return absl::FailedPreconditionError(
      absl::StrCat(PathOf(folder), ": another save writes to this path, and this one ends"));
}

// Of a folder's id.
std::pair<uint64_t, uint64_t> IdentityOf(absl::string_view id) {
  // Ids are made here, or were checked when the state was read: they are hexadecimal.
  std::pair<uint64_t, uint64_t> identity;
  (void)absl::SimpleHexAtoi(id.substr(0, 16), &identity.first);
  (void)absl::SimpleHexAtoi(id.substr(16), &identity.second);
  return identity;
}

std::pair<uint64_t, uint64_t> IdentityOf(absl::string_view key, absl::string_view etag) {
  // The same in every process, as one of the standard library need not be.
  const auto hash = [](absl::string_view text) {
    uint64_t sum = 0xcbf29ce484222325;
    for (const unsigned char c : text) sum = (sum ^ c) * 0x100000001b3;
    return sum;
  };
  return {hash(key), hash(etag)};
}

// The last part of a key or of a prefix with a '/' at its end.
std::string NameOf(absl::string_view key) {
  absl::ConsumeSuffix(&key, "/");
  return std::string(key.substr(key.rfind('/') + 1));
}

// Whether there is anything with that prefix but what only this storage sees.
absl::StatusOr<bool> HasVisible(const S3Client& client, const std::string& bucket,
                                const std::string& prefix) {
  ASSIGN_OR_RETURN(const Listing listing, client.List(bucket, prefix, /*by_folder=*/true));
  const auto is_visible = [](const std::string& key) { return !IsHidden(NameOf(key)); };
  return std::any_of(listing.keys.begin(), listing.keys.end(), is_visible) ||
         std::any_of(listing.prefixes.begin(), listing.prefixes.end(), is_visible);
}

// What keys of files in it begin with; nullopt: it does not exist.
absl::StatusOr<std::optional<std::string>> FilesOf(const S3Client& client, const S3Path& folder) {
  if (folder.key.empty()) return std::string();
  const auto [base, is_partial] = BaseOf(folder.key);
  ASSIGN_OR_RETURN(const FolderState state, ReadState(client, {folder.bucket, base}));
  const std::string& id = is_partial ? state.partial : state.published;
  if (!id.empty()) return PrefixOf(base, id);
  if (state.exists() || is_partial) return std::nullopt;
  return absl::StrCat(folder.key, "/");  // Of objects that others put there.
}

// What no state names: savers that died or were overtaken left it.
absl::Status RemoveUnnamed(const S3Client& client, const S3Path& folder, const std::string& own) {
  ASSIGN_OR_RETURN(const Listing listing, client.List(folder.bucket, absl::StrCat(folder.key, "/"),
                                                      /*by_folder=*/true));
  // After the list: a prefix gets its objects after a state has named it, so that what is in the
  // list and in no state since is nobody's any more.
  ASSIGN_OR_RETURN(const FolderState state, ReadState(client, folder));
  if (state.partial != own) return Anothers(folder);
  for (const std::string& prefix : listing.prefixes) {
    const bool is_named =
        prefix == PrefixOf(folder.key, state.partial) ||
        (!state.published.empty() && prefix == PrefixOf(folder.key, state.published));
    if (is_named || !IsHidden(NameOf(prefix))) continue;
    ASSIGN_OR_RETURN(const std::vector<Upload> uploads, client.ListUploads(folder.bucket, prefix));
    for (const Upload& upload : uploads) RETURN_IF_ERROR(client.AbortUpload(upload));
    RETURN_IF_ERROR(RemoveAll(client, {folder.bucket, prefix}));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<S3Path> S3Storage::Parse(const std::string& path) {
  ASSIGN_OR_RETURN(S3Path parsed, ParsePath(path));
  if (parsed.key.size() <= kMaxPathKeyBytes) return parsed;
  return absl::InvalidArgumentError(absl::StrCat("path '", parsed.key.substr(0, 80),
                                                 "...' has a key of ", parsed.key.size(),
                                                 " bytes, more than ", kMaxPathKeyBytes));
}

S3Storage::Own S3Storage::OwnOf(const S3Path& folder) {
  absl::MutexLock lock(&mu_);
  const auto found = own_.find(PathOf(folder));
  return found == own_.end() ? Own() : found->second;
}

void S3Storage::SetOwn(const S3Path& folder, Own own) {
  absl::MutexLock lock(&mu_);
  if (own.partial.empty() && own.published.empty()) {
    own_.erase(PathOf(folder));
  } else {
    own_[PathOf(folder)] = std::move(own);
  }
}

absl::Status S3Storage::CheckOwn(const S3Path& folder, const FolderState& state) {
  const Own own = OwnOf(folder);
  // A process that did not make the folder, as those of other ranks, has nothing to compare.
  return own.partial.empty() || own.partial == state.partial ? absl::OkStatus() : Anothers(folder);
}

absl::StatusOr<S3Storage::Place> S3Storage::Find(const std::string& path) {
  ASSIGN_OR_RETURN(const S3Path parsed, Parse(path));
  if (parsed.key.empty())
    return absl::InvalidArgumentError(absl::StrCat(path, " is a bucket, not a file in it"));
  const auto [folder, name] = SplitKey(parsed.key);
  Place place;
  ASSIGN_OR_RETURN(place.client, S3Client::Make());
  ASSIGN_OR_RETURN(const std::optional<std::string> files,
                   FilesOf(*place.client, {parsed.bucket, folder}));
  place.is_there = files.has_value();
  place.object = {parsed.bucket, absl::StrCat(files.value_or(""), name)};
  return place;
}

absl::StatusOr<S3Storage::Place> S3Storage::FindToWrite(const std::string& path) {
  ASSIGN_OR_RETURN(Place place, Find(path));
  ASSIGN_OR_RETURN(const S3Path parsed, Parse(path));
  const auto [base, is_partial] = BaseOf(SplitKey(parsed.key).first);
  const S3Path folder = {parsed.bucket, base};
  const std::string own = is_partial ? OwnOf(folder).partial : "";
  // Not into the folder of another save that has begun since: it would publish that.
  if (!own.empty() && !absl::StartsWith(place.object.key, PrefixOf(base, own)))
    return Anothers(folder);
  return place.is_there ? absl::StatusOr<Place>(std::move(place)) : NoFolder(path);
}

absl::Status S3Storage::CreateFile(const std::string& path, int64_t size_bytes,
                                   absl::string_view beginning) {
  ASSIGN_OR_RETURN(const Place place, FindToWrite(path));
  RETURN_IF_ERROR(FaultPoint("model-file.write"));
  return CreateUnfinished(place.client, place.object, size_bytes, beginning);
}

absl::StatusOr<std::unique_ptr<RangeSink>> S3Storage::OpenToWrite(const std::string& path,
                                                                  DirectWrites* /*direct*/) {
  ASSIGN_OR_RETURN(const Place place, FindToWrite(path));
  ASSIGN_OR_RETURN(const std::optional<UnfinishedFile> file,
                   FindUnfinished(*place.client, place.object));
  if (!file.has_value()) return absl::NotFoundError(absl::StrCat(path, " was not created"));
  return std::make_unique<UploadSink>(place.client, place.object, file->attempt, path);
}

absl::Status S3Storage::WriteWhole(const std::string& path, absl::string_view bytes) {
  RETURN_IF_ERROR(FaultPoint("file.write"));
  ASSIGN_OR_RETURN(const Place place, FindToWrite(path));
  return place.client->Put(place.object, bytes);
}

absl::Status S3Storage::PublishFile(const std::string& partial, const std::string& path) {
  ASSIGN_OR_RETURN(const Place from, FindToWrite(partial));
  ASSIGN_OR_RETURN(const Place to, FindToWrite(path));
  return PublishUnfinished(*from.client, from.object, to.object);
}

absl::StatusOr<std::unique_ptr<ReadableFile>> S3Storage::OpenFile(const std::string& path) {
  ASSIGN_OR_RETURN(const Place place, Find(path));
  std::optional<ObjectInfo> info;
  if (place.is_there) {
    ASSIGN_OR_RETURN(info, place.client->Head(place.object));
  }
  if (!info.has_value())
    return absl::NotFoundError(absl::StrCat("open ", path, ": no such object"));
  return std::make_unique<S3File>(place.client, place.object, *std::move(info), path);
}

absl::Status S3Storage::RemoveFile(const std::string& path) {
  ASSIGN_OR_RETURN(const Place place, Find(path));
  if (!place.is_there) return absl::OkStatus();
  if (absl::EndsWith(path, ".partial"))
    RETURN_IF_ERROR(RemoveUnfinished(*place.client, place.object));
  return place.client->Delete(place.object);
}

absl::Status S3Storage::Replace(const S3Client& client, const S3Path& folder, Change change) {
  for (int i = 0; i < kMostChanges; ++i) {
    ASSIGN_OR_RETURN(const FolderState from, ReadState(client, folder));
    FolderState to = from;
    RETURN_IF_ERROR(change(&to));
    // Of two that change it at once, one fails here and looks at what the other has made.
    ASSIGN_OR_RETURN(const bool is_done, ChangeState(client, folder, from, to));
    if (is_done) return absl::OkStatus();
  }
  return absl::AbortedError(
      absl::StrCat(PathOf(folder), ": other processes go on changing this folder"));
}

absl::Status S3Storage::MakeFolder(const std::string& path) {
  ASSIGN_OR_RETURN(const S3Path parsed, Parse(path));
  const auto [base, is_partial] = BaseOf(parsed.key);
  // A folder that is not of a save is what names begin with.
  if (!is_partial) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Client client, S3Client::Make());
  const S3Path folder = {parsed.bucket, base};
  const std::string id = NewFolderId();
  // Named before anything is put below it: other saves remove what no state names.
  RETURN_IF_ERROR(Replace(*client, folder, [&](FolderState* state) {
    if (!state->partial.empty())
      return absl::AlreadyExistsError(absl::StrCat(path, " exists already"));
    state->partial = id;
    return absl::OkStatus();
  }));
  SetOwn(folder, {id, "", ""});
  return RemoveUnnamed(*client, folder, id);
}

// What an object store has answered is durable.
absl::Status S3Storage::SyncFolder(const std::string& /*path*/) {
  return FaultPoint("folder.sync");
}

absl::Status S3Storage::PublishFolder(const std::string& partial, const std::string& path,
                                      bool exchange) {
  ASSIGN_OR_RETURN(const S3Path folder, Parse(path));
  ASSIGN_OR_RETURN(const Client client, S3Client::Make());
  RETURN_IF_ERROR(FaultPoint("checkpoint.rename"));
  Own own;
  RETURN_IF_ERROR(Replace(*client, folder, [&](FolderState* state) -> absl::Status {
    RETURN_IF_ERROR(CheckOwn(folder, *state));
    if (state->partial.empty()) return NoFolder(partial);
    if (!exchange && !state->published.empty())
      return absl::AlreadyExistsError(absl::StrCat(path, " exists already"));
    if (exchange && state->published.empty()) return NoFolder(path);
    std::swap(state->published, state->partial);
    own = {"", state->published, state->partial};
    return absl::OkStatus();
  }));
  // UnpublishFolder undoes this change and no other.
  SetOwn(folder, own);
  // Places to die in, not to fail: the folder has its name by now.
  (void)FaultPoint("checkpoint.renamed");
  (void)FaultPoint("checkpoint.published");
  return absl::OkStatus();
}

absl::Status S3Storage::UnpublishFolder(const std::string& path, const std::string& /*partial*/,
                                        bool exchange) {
  ASSIGN_OR_RETURN(const S3Path folder, Parse(path));
  ASSIGN_OR_RETURN(const Client client, S3Client::Make());
  const Own own = OwnOf(folder);
  RETURN_IF_ERROR(Replace(*client, folder, [&](FolderState* state) {
    // What another save made meanwhile must not get the name: it is not finished.
    if (own.published.empty() || state->published != own.published ||
        state->partial != own.replaced || exchange == own.replaced.empty()) {
      return Anothers(folder);
    }
    std::swap(state->published, state->partial);
    return absl::OkStatus();
  }));
  SetOwn(folder, {own.published, "", ""});
  return absl::OkStatus();
}

absl::Status S3Storage::RetireFolder(const std::string& path, const std::string& partial) {
  ASSIGN_OR_RETURN(const S3Path folder, Parse(path));
  ASSIGN_OR_RETURN(const Client client, S3Client::Make());
  return Replace(*client, folder, [&](FolderState* state) {
    if (state->published.empty()) return NoFolder(path);
    if (!state->partial.empty())
      return absl::AlreadyExistsError(absl::StrCat(partial, " exists already"));
    std::swap(state->published, state->partial);
    return absl::OkStatus();
  });
}

absl::Status S3Storage::RemoveEmptyFolder(const std::string& path) {
  ASSIGN_OR_RETURN(const S3Path parsed, Parse(path));
  ASSIGN_OR_RETURN(const Client client, S3Client::Make());
  const auto [base, is_partial] = BaseOf(parsed.key);
  const S3Path folder = {parsed.bucket, base};
  ASSIGN_OR_RETURN(const std::optional<std::string> files, FilesOf(*client, parsed));
  if (!files.has_value()) return NoFolder(path);
  ASSIGN_OR_RETURN(const Listing listing,
                   client->List(parsed.bucket, *files, /*by_folder=*/true, /*most=*/1));
  if (!listing.keys.empty() || !listing.prefixes.empty())
    return absl::FailedPreconditionError(absl::StrCat("remove ", path, ": something is in it"));
  if (!is_partial) return absl::OkStatus();  // There is nothing of it.
  bool is_last = false;
  RETURN_IF_ERROR(Replace(*client, folder, [&](FolderState* state) {
    if (state->partial.empty() || PrefixOf(folder.key, state->partial) != *files)
      return Anothers(folder);
    state->partial.clear();
    is_last = state->published.empty();
    return absl::OkStatus();
  }));
  SetOwn(folder, {});
  // A save that begins now and loses the object notices that when it publishes.
  if (is_last) RemoveEmptyState(*client, folder);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> S3Storage::List(const std::string& path) {
  ASSIGN_OR_RETURN(const S3Path folder, Parse(path));
  ASSIGN_OR_RETURN(const Client client, S3Client::Make());
  ASSIGN_OR_RETURN(const std::optional<std::string> files, FilesOf(*client, folder));
  if (!files.has_value()) return NoFolder(path);
  ASSIGN_OR_RETURN(const Listing listing, client->List(folder.bucket, *files, /*by_folder=*/true));
  if (listing.keys.empty() && listing.prefixes.empty() && !folder.key.empty() &&
      *files == absl::StrCat(folder.key, "/")) {
    return NoFolder(path);
  }
  std::vector<std::string> names;
  for (const std::string& key : listing.keys) {
    // Programs that show folders put an object with the name of the prefix itself.
    if (key != *files && !IsHidden(NameOf(key))) names.push_back(NameOf(key));
  }
  // What there is of each: PATH and PATH.partial have one prefix.
  std::vector<std::vector<std::string>> found(listing.prefixes.size());
  ParallelCalls calls(kStatesAtOnce);
  for (size_t i = 0; i < listing.prefixes.size(); ++i) {
    RETURN_IF_ERROR(calls.Add([&, i]() -> absl::Status {
      const std::string name = NameOf(listing.prefixes[i]);
      if (IsHidden(name)) return absl::OkStatus();
      const std::string key(absl::StripSuffix(listing.prefixes[i], "/"));
      ASSIGN_OR_RETURN(const FolderState state, ReadState(*client, {folder.bucket, key}));
      if (!state.published.empty()) found[i].push_back(name);
      if (!state.partial.empty()) found[i].push_back(absl::StrCat(name, ".partial"));
      if (state.exists()) return absl::OkStatus();
      ASSIGN_OR_RETURN(const bool is_visible,
                       HasVisible(*client, folder.bucket, listing.prefixes[i]));
      if (is_visible) found[i].push_back(name);
      return absl::OkStatus();
    }));
  }
  RETURN_IF_ERROR(calls.Await());
  for (const std::vector<std::string>& some : found)
    names.insert(names.end(), some.begin(), some.end());
  return names;
}

absl::StatusOr<std::optional<EntryInfo>> S3Storage::Look(const std::string& path, Links) {
  ASSIGN_OR_RETURN(const S3Path parsed, Parse(path));
  ASSIGN_OR_RETURN(const Client client, S3Client::Make());
  if (parsed.key.empty()) {
    RETURN_IF_ERROR(client->List(parsed.bucket, "", /*by_folder=*/true, /*most=*/1).status());
    return EntryInfo{EntryInfo::Kind::kFolder, 0, absl::UnixEpoch(), IdentityOf("", "")};
  }
  ASSIGN_OR_RETURN(const Place place, Find(path));
  if (place.is_there) {
    ASSIGN_OR_RETURN(const std::optional<ObjectInfo> info, client->Head(place.object));
    if (info.has_value()) {
      return EntryInfo{EntryInfo::Kind::kFile, info->size_bytes, info->changed_at,
                       IdentityOf(place.object.key, info->etag)};
    }
    if (absl::EndsWith(path, ".partial")) {
      ASSIGN_OR_RETURN(const std::optional<UnfinishedFile> file,
                       FindUnfinished(*client, place.object));
      if (file.has_value()) {
        return EntryInfo{EntryInfo::Kind::kFile, file->size_bytes, absl::UnixEpoch(),
                         IdentityOf(place.object.key, file->attempt)};
      }
    }
  }
  const auto [base, is_partial] = BaseOf(parsed.key);
  ASSIGN_OR_RETURN(const FolderState state, ReadState(*client, {parsed.bucket, base}));
  const std::string& id = is_partial ? state.partial : state.published;
  if (!id.empty()) return EntryInfo{EntryInfo::Kind::kFolder, 0, state.changed_at, IdentityOf(id)};
  if (state.exists()) return std::nullopt;
  ASSIGN_OR_RETURN(const bool is_visible,
                   HasVisible(*client, parsed.bucket, absl::StrCat(parsed.key, "/")));
  if (!is_visible) return std::nullopt;
  return EntryInfo{EntryInfo::Kind::kFolder, 0, absl::UnixEpoch(), IdentityOf(parsed.key, "")};
}

}  // namespace tessera::s3
