#include "checkpoint/dcp/pickle.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace tessera::dcp {
namespace {

// Python's names of them, from the documentation of pickletools.
enum Opcode : uint8_t {
  kMark = '(',
  kStop = '.',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinUnicode = 'X',
  kBinFloat = 'G',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kEmptyList = ']',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyDict = '}',
  kEmptyTuple = ')',
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
};

// The stack machine. Each method that reads says whether it could.
class Machine {
 public:
  Machine(absl::string_view bytes, absl::Span<const absl::string_view> globals, bool persistent_ids,
          size_t max_values)
      : bytes_(bytes),
        globals_(globals),
        persistent_ids_(persistent_ids),
        max_values_(max_values) {}

  // The machine of pickletools, without anything that imports or calls.
  absl::Status Run() {
    while (true) {
      if (at_ >= bytes_.size()) return Bad("it is cut");
      const auto opcode = static_cast<uint8_t>(bytes_[at_++]);
      if (opcode == kStop) break;
      RETURN_IF_ERROR(Step(opcode));
      // Bounds memory: each value takes more than the byte or two that make it. The stack needs no
      // bound of its own, since each of its entries takes bytes of the pickle.
      if (std::max({arena_.size(), memo_.size(), marks_.size()}) > max_values_)
        return Bad("too many values");
    }
    if (stack_.size() != 1 || !marks_.empty()) return Bad("it ends with more than one value");
    if (at_ != bytes_.size()) return Bad("it continues after its end");
    return absl::OkStatus();
  }
  uint32_t root() const { return stack_[0]; }
  std::vector<PickleValue> TakeArena() { return std::move(arena_); }

 private:
  absl::Status Bad(absl::string_view why) const {
    return absl::InvalidArgumentError(absl::StrCat("pickle: at byte ", at_, ": ", why));
  }

  absl::Status Step(uint8_t opcode) {
    switch (opcode) {
      case kProto:
        return Skip(1);
      case kFrame:
        return Skip(8);
      case kNone:
        return Push(PickleKind::kNone);
      case kNewTrue:
        return Push(PickleKind::kBool, 1);
      case kNewFalse:
        return Push(PickleKind::kBool, 0);
      case kBinFloat:
        return PushFloat();
      case kBinInt:
        return PushInt(4, true);
      case kBinInt1:
        return PushInt(1, false);
      case kBinInt2:
        return PushInt(2, false);
      case kLong1: {
        // Python writes longer ones, for numbers that nothing here has.
        ASSIGN_OR_RETURN(const uint64_t size, Word(1));
        if (size > 8) return Bad("a number of more than 64 bits");
        return PushInt(size, true);
      }
      case kShortBinUnicode:
        return PushText(1, PickleKind::kString);
      case kBinUnicode:
        return PushText(4, PickleKind::kString);
      case kBinUnicode8:
        return PushText(8, PickleKind::kString);
      case kShortBinBytes:
        return PushText(1, PickleKind::kBytes);
      case kBinBytes:
        return PushText(4, PickleKind::kBytes);
      default:
        return StepContainer(opcode);
    }
  }

  absl::Status StepContainer(uint8_t opcode) {
    switch (opcode) {
      case kMark:
        // Marks remember the stack's height. What takes from the stack may not go below the last
        // one.
        marks_.push_back(stack_.size());
        return absl::OkStatus();
      case kEmptyTuple:
        return Push(PickleKind::kTuple);
      case kEmptyList:
        return Push(PickleKind::kList);
      case kEmptyDict:
        return Push(PickleKind::kDict);
      case kTuple1:
      case kTuple2:
      case kTuple3:
        return Gather(opcode - kTuple1 + 1);
      case kTuple: {
        ASSIGN_OR_RETURN(const size_t count, PopMark());
        return Gather(count);
      }
      case kAppend:
        return Extend(PickleKind::kList, 1);
      case kSetItem:
        return Extend(PickleKind::kDict, 2);
      case kAppends:
      case kSetItems: {
        ASSIGN_OR_RETURN(const size_t count, PopMark());
        // Count is checked here: the container below takes pairs.
        if (opcode == kSetItems && count % 2 != 0) return Bad("a key without a value");
        return Extend(opcode == kAppends ? PickleKind::kList : PickleKind::kDict, count);
      }
      default:
        return StepObject(opcode);
    }
  }

  absl::Status StepObject(uint8_t opcode) {
    switch (opcode) {
      case kGlobal: {
        ASSIGN_OR_RETURN(const absl::string_view module, Line());
        ASSIGN_OR_RETURN(const absl::string_view name, Line());
        return PushGlobal(module, name);
      }
      case kStackGlobal: {
        RETURN_IF_ERROR(Need(2));
        const PickleValue &name = Top(0), &module = Top(1);
        if (name.kind != PickleKind::kString || module.kind != PickleKind::kString)
          return Bad("a global whose name is not a string");
        stack_.resize(stack_.size() - 2);
        return PushGlobal(module.text, name.text);
      }
      case kReduce:
      case kNewObj:
        RETURN_IF_ERROR(Need(2));
        // A call of a known name becomes data: the name and its arguments.
        if (Top(1).kind != PickleKind::kGlobal || Top(0).kind != PickleKind::kTuple)
          return Bad("a call of something that is not a global");
        return Wrap(PickleKind::kObject, 2);
      case kBuild:
        return SetState();
      case kBinPersId:
        // Only archives that have storages may name them.
        if (!persistent_ids_) return Bad("a persistent id");
        RETURN_IF_ERROR(Need(1));
        return Wrap(PickleKind::kPersistent, 1);
      default:
        return StepMemo(opcode);
    }
  }

  absl::Status StepMemo(uint8_t opcode) {
    switch (opcode) {
      case kMemoize:
        return Put(memo_.size());
      case kBinPut:
      case kLongBinPut: {
        ASSIGN_OR_RETURN(const uint64_t key, Word(opcode == kBinPut ? 1 : 4));
        return Put(key);
      }
      case kBinGet:
      case kLongBinGet: {
        ASSIGN_OR_RETURN(const uint64_t key, Word(opcode == kBinGet ? 1 : 4));
        const auto it = memo_.find(key);
        // A reference to a value that exists. Values may so contain each other, even themselves:
        // readers do not follow them without a limit.
        if (it == memo_.end()) return Bad("a value that was not remembered");
        stack_.push_back(it->second);
        return absl::OkStatus();
      }
      default:
        return Bad(absl::StrFormat("opcode 0x%02x, which plain data does not need", opcode));
    }
  }

  absl::Status Put(uint64_t key) {
    RETURN_IF_ERROR(Need(1));
    memo_[key] = stack_.back();
    return absl::OkStatus();
  }

  absl::Status Push(PickleKind kind, int64_t number = 0, absl::string_view text = {},
                    std::vector<uint32_t> items = {}) {
    stack_.push_back(static_cast<uint32_t>(arena_.size()));
    arena_.push_back({kind, number, text, std::move(items)});
    return absl::OkStatus();
  }

  absl::Status PushInt(size_t size_bytes, bool is_signed) {
    ASSIGN_OR_RETURN(const uint64_t word, Word(size_bytes));
    const int unused_bits = 64 - 8 * static_cast<int>(size_bytes);
    const bool negative = is_signed && size_bytes > 0 && (word >> (8 * size_bytes - 1)) != 0;
    // All bits above those that are there are the sign's.
    const uint64_t sign = negative && unused_bits > 0 ? ~uint64_t{0} << (64 - unused_bits) : 0;
    return Push(PickleKind::kInt, static_cast<int64_t>(word | sign));
  }

  // The only number of a pickle whose highest byte comes first.
  absl::Status PushFloat() {
    ASSIGN_OR_RETURN(const uint64_t word, Word(8));
    return Push(PickleKind::kFloat, static_cast<int64_t>(__builtin_bswap64(word)));
  }

  absl::Status PushText(size_t length_bytes, PickleKind kind) {
    ASSIGN_OR_RETURN(const uint64_t size, Word(length_bytes));
    // Written so that the sum cannot overflow.
    if (size > bytes_.size() - at_) return Bad("it is cut");
    const absl::string_view text = bytes_.substr(at_, size);
    at_ += size;
    return Push(kind, 0, text);
  }

  absl::Status PushGlobal(absl::string_view module, absl::string_view name) {
    // Compared part by part, without joining them: names may be long.
    for (const absl::string_view known : globals_) {
      if (known.size() == module.size() + 1 + name.size() && known[module.size()] == ' ' &&
          absl::StartsWith(known, module) && absl::EndsWith(known, name)) {
        return Push(PickleKind::kGlobal, 0, known);
      }
    }
    return Bad(absl::StrCat("it names '", absl::Utf8SafeCEscape(module.substr(0, 200)), ".",
                            absl::Utf8SafeCEscape(name.substr(0, 200)),
                            "', which is not of this format"));
  }

  // A new value of what `count` values on the stack were.
  absl::Status Wrap(PickleKind kind, size_t count) {
    std::vector<uint32_t> items(stack_.end() - count, stack_.end());
    stack_.resize(stack_.size() - count);
    return Push(kind, 0, {}, std::move(items));
  }

  absl::Status Gather(size_t count) {
    RETURN_IF_ERROR(Need(count));
    return Wrap(PickleKind::kTuple, count);
  }

  // `count` values go into the container below them.
  absl::Status Extend(PickleKind kind, size_t count) {
    RETURN_IF_ERROR(Need(count + 1));
    PickleValue& container = Top(count);
    if (container.kind != kind) return Bad("items for something that is not a list or dict");
    container.items.insert(container.items.end(), stack_.end() - count, stack_.end());
    stack_.resize(stack_.size() - count);
    return absl::OkStatus();
  }

  absl::Status SetState() {
    RETURN_IF_ERROR(Need(2));
    PickleValue& object = Top(1);
    if (object.kind != PickleKind::kObject || object.items.size() != 2)
      return Bad("a state for something that is not an object, or that has one");
    object.items.push_back(stack_.back());
    stack_.pop_back();
    return absl::OkStatus();
  }

  // How many values are above the last mark, which is removed.
  absl::StatusOr<size_t> PopMark() {
    if (marks_.empty()) return Bad("no mark");
    // Never negative: Need keeps the stack above the last mark.
    const size_t count = stack_.size() - marks_.back();
    marks_.pop_back();
    return count;
  }

  // Values above the last mark, which what takes from the stack may not go below.
  absl::Status Need(size_t count) const {
    const size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() >= floor && stack_.size() - floor >= count) return absl::OkStatus();
    return Bad("it takes more from the stack than is there");
  }
  PickleValue& Top(size_t below) { return arena_[stack_[stack_.size() - 1 - below]]; }

  absl::Status Skip(size_t size_bytes) {
    if (size_bytes > bytes_.size() - at_) return Bad("it is cut");
    at_ += size_bytes;
    return absl::OkStatus();
  }
  // Little-endian.
  absl::StatusOr<uint64_t> Word(size_t size_bytes) {
    const size_t begin = at_;
    RETURN_IF_ERROR(Skip(size_bytes));
    uint64_t word = 0;
    for (size_t i = 0; i < size_bytes; ++i)
      word |= static_cast<uint64_t>(static_cast<uint8_t>(bytes_[begin + i])) << (8 * i);
    return word;
  }
  absl::StatusOr<absl::string_view> Line() {
    const size_t end = bytes_.find('\n', at_);
    if (end == absl::string_view::npos) return Bad("it is cut");
    const absl::string_view line = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return line;
  }

  const absl::string_view bytes_;
  const absl::Span<const absl::string_view> globals_;
  const bool persistent_ids_;
  const size_t max_values_;
  size_t at_ = 0;
  std::vector<PickleValue> arena_;
  std::vector<uint32_t> stack_;
  std::vector<size_t> marks_;  // How high the stack was at each.
  absl::flat_hash_map<uint64_t, uint32_t> memo_;
};

}  // namespace

absl::StatusOr<Pickle> Pickle::Decode(absl::string_view bytes,
                                      absl::Span<const absl::string_view> globals,
                                      bool persistent_ids, size_t max_values) {
  Machine machine(bytes, globals, persistent_ids, max_values);
  RETURN_IF_ERROR(machine.Run());
  const uint32_t root = machine.root();
  return Pickle(machine.TakeArena(), root);
}

}  // namespace tessera::dcp
