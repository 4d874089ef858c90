// A Python pickle of anybody's, read as data and never executed.
//
//   bytes ──► a stack machine of the opcodes that plain data needs ──► values in one arena
//
// A pickle is a program that may name any function of Python. Here a name is only a name: what is
// not in the list of the reader is refused as it comes up, and "calling" one of the list makes an
// object of its name and arguments. So nothing runs, memory is linear in the pickle's size, and
// nesting costs no stack. Values may be shared, and even contain themselves: walk them only by a
// known shape. Texts are views of the bytes that were decoded. Thread-safe once decoded.
#ifndef TESSERA_CHECKPOINT_DCP_PICKLE_H_
#define TESSERA_CHECKPOINT_DCP_PICKLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/casts.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tessera::dcp {

enum class PickleKind : uint8_t {
  kNone,
  kBool,        // number
  kInt,         // number
  kFloat,       // real
  kString,      // text
  kBytes,       // text
  kTuple,       // items
  kList,        // items
  kDict,        // items: key, value, key, value ...
  kGlobal,      // text: "module name", as in the list
  kObject,      // items: the global, the tuple of its arguments and, where it has one, its state
  kPersistent,  // items: the id
};

struct PickleValue {
  PickleKind kind = PickleKind::kNone;
  int64_t number = 0;  // Of a kFloat the bits.
  absl::string_view text;
  std::vector<uint32_t> items;  // Places in the arena.
};

// Some 64 bytes each.
inline constexpr size_t kMaxPickleValues = 1 << 24;

class Pickle {
 public:
  // One value and the arena that its items are in. Valid as long as the Pickle.
  class Ref {
   public:
    PickleKind kind() const { return value().kind; }
    int64_t number() const { return value().number; }
    double real() const { return absl::bit_cast<double>(value().number); }
    absl::string_view text() const { return value().text; }
    size_t size() const { return value().items.size(); }
    Ref item(size_t i) const { return Ref(arena_, value().items[i]); }
    bool IsGlobal(absl::string_view module_and_name) const {
      return kind() == PickleKind::kGlobal && text() == module_and_name;
    }
    // An object of this global.
    bool IsObject(absl::string_view module_and_name) const {
      return kind() == PickleKind::kObject && item(0).IsGlobal(module_and_name);
    }

   private:
    friend class Pickle;
    Ref(const std::vector<PickleValue>* arena, uint32_t place) : arena_(arena), place_(place) {}
    const PickleValue& value() const { return (*arena_)[place_]; }

    const std::vector<PickleValue>* arena_;
    uint32_t place_;
  };

  // `globals`: what may be named, each as "module name"; they outlive the Pickle, and so do
  // `bytes`. `persistent_ids`: whether values may refer to outside data, by ids.
  // Errors: InvalidArgument  with the place in bytes: a global that is not in the list, by name; an
  //         opcode that plain data does not need, by number; a pickle that is truncated, continues
  //         after its end, or takes from its stack what is not there; more than `max_values`.
  static absl::StatusOr<Pickle> Decode(absl::string_view bytes,
                                       absl::Span<const absl::string_view> globals,
                                       bool persistent_ids, size_t max_values = kMaxPickleValues);

  Ref root() const { return Ref(&arena_, root_); }

 private:
  Pickle(std::vector<PickleValue> arena, uint32_t root) : arena_(std::move(arena)), root_(root) {}

  std::vector<PickleValue> arena_;
  uint32_t root_;
};

}  // namespace tessera::dcp

#endif  // TESSERA_CHECKPOINT_DCP_PICKLE_H_
