#include "checkpoint/dcp/torch_archive.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace tessera::dcp {
namespace {

using Members = std::map<std::string, ByteRange>;

absl::Status Bad(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("torch archive: ", why));
}

absl::StatusOr<std::string> ReadMember(const OpenFile& file, const ByteRange& member) {
  // Before it is allocated.
  if (member.size_bytes > kMaxArchivePickleBytes) return Bad("a pickle of this size");
  std::string bytes(member.size_bytes, '\0');
  RETURN_IF_ERROR(ReadBytes(file, member.begin_bytes, member.size_bytes, bytes.data()));
  return bytes;
}

absl::StatusOr<TorchArchive> Read(const OpenFile& file, Members members) {
  constexpr absl::string_view kPickle = "data.pkl";
  const std::string* name = nullptr;
  for (const auto& [member, range] : members) {
    if (member != kPickle && !absl::EndsWith(member, "/data.pkl")) continue;
    // Two would be two objects, and readers would differ.
    if (name != nullptr) return Bad("it is more than one");
    name = &member;
  }
  if (name == nullptr) return Bad("it is something else");
  TorchArchive archive;
  archive.prefix = name->substr(0, name->size() - kPickle.size());
  const auto order = members.find(archive.prefix + "byteorder");
  // Older versions of PyTorch write no such member: their archives are taken for little-endian.
  if (order != members.end()) {
    ASSIGN_OR_RETURN(const std::string byte_order, ReadMember(file, order->second));
    if (byte_order != "little") return Bad("another byte order than little-endian");
  }
  ASSIGN_OR_RETURN(archive.pickle, ReadMember(file, members.at(*name)));
  archive.members = std::move(members);
  return archive;
}

}  // namespace

std::string ItemOf(const OpenFile& file, const ByteRange& zip) {
  return absl::StrCat(file.path, ": item at ", zip.begin_bytes);
}

absl::StatusOr<TorchArchive> ReadTorchArchive(const OpenFile& file, const ByteRange& zip) {
  ASSIGN_OR_RETURN(Members members, ListStoredMembers(file, zip));
  absl::StatusOr<TorchArchive> archive = Read(file, std::move(members));
  if (!archive.ok()) return Annotate(archive.status(), ItemOf(file, zip));
  return archive;
}

}  // namespace tessera::dcp
