#include "checkpoint/dcp/stored_zip.h"

#include <cstddef>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace tessera::dcp {
namespace {

constexpr uint32_t kMemberSignature = 0x04034b50, kEntrySignature = 0x02014b50,
                   kEndSignature = 0x06054b50, kEnd64Signature = 0x06064b50,
                   kLocator64Signature = 0x07064b50;
constexpr int64_t kMemberBytes = 30, kEntryBytes = 46, kEndBytes = 22, kEnd64Bytes = 56,
                  kLocator64Bytes = 20;
constexpr int64_t kMaxDirectoryBytes = 1 << 20;
constexpr uint64_t kIn64 = 0xffffffff;  // The number is in the 64-bit form.

uint64_t Word(absl::string_view bytes, size_t at, size_t size) {
  uint64_t word = 0;
  for (size_t i = 0; i < size; ++i)
    word |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[at + i])) << (8 * i);
  return word;
}

struct Directory {
  uint64_t begin_bytes = 0;  // From the zip's start.
  uint64_t size_bytes = 0;
  uint64_t num_entries = 0;
};

struct Entry {
  std::string name;
  uint64_t size_bytes = 0, stored_bytes = 0, at_bytes = 0;  // at: the local header, from the start.
  uint64_t flags = 0, method = 0;
};

class ZipReader {
 public:
  ZipReader(const OpenFile& file, const ByteRange& zip) : file_(file), zip_(zip) {}

  absl::StatusOr<std::map<std::string, ByteRange>> List() {
    ASSIGN_OR_RETURN(const Directory directory, FindDirectory());
    ASSIGN_OR_RETURN(const std::string bytes,
                     Read(directory.begin_bytes, static_cast<int64_t>(directory.size_bytes)));
    std::map<std::string, ByteRange> members;
    // The directory decides what is where. Local headers must agree with it.
    absl::string_view rest = bytes;
    for (uint64_t i = 0; i < directory.num_entries; ++i) {
      ASSIGN_OR_RETURN(const Entry entry, TakeEntry(&rest));
      ASSIGN_OR_RETURN(const ByteRange range, Locate(entry, directory.begin_bytes));
      if (!members.emplace(entry.name, range).second) return Bad("is there twice", entry.name);
    }
    // What follows the last entry could be another directory, which other readers would take.
    if (!rest.empty()) return Bad("its directory holds more than it says");
    return members;
  }

 private:
  absl::Status Bad(absl::string_view why, absl::string_view member = "") const {
    return absl::InvalidArgumentError(absl::StrCat(
        file_.path, ": zip at ", zip_.begin_bytes, ": ",
        member.empty() ? "" : absl::StrCat("'", absl::Utf8SafeCEscape(member), "' "), why));
  }

  // [at_bytes, at_bytes + size_bytes) of the zip.
  absl::StatusOr<std::string> Read(uint64_t at_bytes, int64_t size_bytes) const {
    // A negative offset is a very large one here, and is refused.
    if (size_bytes < 0 || size_bytes > zip_.size_bytes ||
        at_bytes > static_cast<uint64_t>(zip_.size_bytes - size_bytes)) {
      return Bad("it is shorter than it says");
    }
    std::string bytes(size_bytes, '\0');
    RETURN_IF_ERROR(ReadBytes(file_, zip_.begin_bytes + static_cast<int64_t>(at_bytes), size_bytes,
                              bytes.data()));
    return bytes;
  }

  absl::StatusOr<Directory> FindDirectory() const {
    ASSIGN_OR_RETURN(const std::string end, Read(zip_.size_bytes - kEndBytes, kEndBytes));
    // A comment would let a zip end in several places.
    if (Word(end, 0, 4) != kEndSignature || Word(end, 20, 2) != 0)
      return Bad("no end of a zip at its end");
    Directory directory = {Word(end, 16, 4), Word(end, 12, 4), Word(end, 10, 2)};
    uint64_t volumes = Word(end, 4, 2) | Word(end, 6, 2);
    if (directory.begin_bytes == kIn64 || directory.size_bytes == kIn64 ||
        directory.num_entries == 0xffff) {
      ASSIGN_OR_RETURN(const std::string locator,
                       Read(zip_.size_bytes - kEndBytes - kLocator64Bytes, kLocator64Bytes));
      if (Word(locator, 0, 4) != kLocator64Signature) return Bad("no 64-bit end");
      ASSIGN_OR_RETURN(const std::string end64, Read(Word(locator, 8, 8), kEnd64Bytes));
      if (Word(end64, 0, 4) != kEnd64Signature) return Bad("no 64-bit end");
      directory = {Word(end64, 48, 8), Word(end64, 40, 8), Word(end64, 32, 8)};
      volumes = Word(end64, 16, 4) | Word(end64, 20, 4);
    }
    if (volumes != 0) return Bad("more than one volume");
    // Before anything is allocated for it.
    if (directory.size_bytes > kMaxDirectoryBytes ||
        directory.num_entries > directory.size_bytes / kEntryBytes) {
      return Bad("a directory of this size");
    }
    return directory;
  }

  absl::StatusOr<Entry> TakeEntry(absl::string_view* rest) const {
    if (rest->size() < kEntryBytes || Word(*rest, 0, 4) != kEntrySignature)
      return Bad("its directory is damaged");
    Entry entry;
    entry.flags = Word(*rest, 8, 2);
    entry.method = Word(*rest, 10, 2);
    entry.stored_bytes = Word(*rest, 20, 4);
    entry.size_bytes = Word(*rest, 24, 4);
    entry.at_bytes = Word(*rest, 42, 4);
    const size_t name_bytes = Word(*rest, 28, 2), extra_bytes = Word(*rest, 30, 2);
    const size_t all_bytes = kEntryBytes + name_bytes + extra_bytes + Word(*rest, 32, 2);
    if (all_bytes > rest->size()) return Bad("its directory is damaged");
    entry.name = std::string(rest->substr(kEntryBytes, name_bytes));
    RETURN_IF_ERROR(ReadExtra(rest->substr(kEntryBytes + name_bytes, extra_bytes), &entry));
    rest->remove_prefix(all_bytes);
    return entry;
  }

  // The numbers of 64 bits, in the order in which their places say that they are there.
  absl::Status ReadExtra(absl::string_view extra, Entry* entry) const {
    // Fields in any order. Unknown ones are skipped.
    while (extra.size() >= 4) {
      const uint64_t id = Word(extra, 0, 2), size = Word(extra, 2, 2);
      if (size > extra.size() - 4) return Bad("has a damaged extra field", entry->name);
      absl::string_view field = extra.substr(4, size);
      extra.remove_prefix(4 + size);
      if (id != 1) continue;
      for (uint64_t* number : {&entry->size_bytes, &entry->stored_bytes, &entry->at_bytes}) {
        // Only those that the 32-bit form leaves out, in this order.
        if (*number != kIn64) continue;
        if (field.size() < 8) return Bad("lacks a 64-bit number", entry->name);
        *number = Word(field, 0, 8);
        field.remove_prefix(8);
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<ByteRange> Locate(const Entry& entry, uint64_t directory_begin_bytes) const {
    constexpr uint64_t kEncrypted = 1;
    if (entry.method != 0 || entry.stored_bytes != entry.size_bytes)
      return Bad("is compressed", entry.name);
    if ((entry.flags & kEncrypted) != 0) return Bad("is encrypted", entry.name);
    // Reading past the zip is refused by Read, so offsets below are small.
    ASSIGN_OR_RETURN(const std::string local, Read(entry.at_bytes, kMemberBytes));
    if (Word(local, 0, 4) != kMemberSignature || Word(local, 8, 2) != 0 ||
        Word(local, 26, 2) != entry.name.size()) {
      return Bad("is not where the directory says", entry.name);
    }
    // The name is repeated at the data. Another one would be a member that only some readers see.
    ASSIGN_OR_RETURN(const std::string name,
                     Read(entry.at_bytes + kMemberBytes, static_cast<int64_t>(entry.name.size())));
    const uint64_t data_bytes =
        entry.at_bytes + kMemberBytes + entry.name.size() + Word(local, 28, 2);
    if (name != entry.name) return Bad("is not where the directory says", entry.name);
    // Written so that no sum can overflow.
    if (data_bytes > directory_begin_bytes ||
        entry.size_bytes > directory_begin_bytes - data_bytes) {
      return Bad("is not before the directory", entry.name);
    }
    return ByteRange{zip_.begin_bytes + static_cast<int64_t>(data_bytes),
                     static_cast<int64_t>(entry.size_bytes)};
  }

  const OpenFile& file_;
  const ByteRange zip_;
};

}  // namespace

absl::StatusOr<std::map<std::string, ByteRange>> ListStoredMembers(const OpenFile& file,
                                                                   const ByteRange& zip) {
  return ZipReader(file, zip).List();
}

}  // namespace tessera::dcp
