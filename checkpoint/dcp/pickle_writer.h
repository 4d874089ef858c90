// Pickles for tests, put together from their parts: opcodes as text.
#ifndef TESSERA_CHECKPOINT_DCP_PICKLE_WRITER_H_
#define TESSERA_CHECKPOINT_DCP_PICKLE_WRITER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tessera::dcp::pickle_writer {

inline std::string Word(uint64_t word, int size_bytes) {
  std::string bytes;
  for (int i = 0; i < size_bytes; ++i) bytes += static_cast<char>((word >> (8 * i)) & 0xff);
  return bytes;
}
inline std::string None() { return "N"; }
inline std::string Int(int64_t value) { return "\x8a\x08" + Word(value, 8); }
inline std::string Str(const std::string& text) { return "X" + Word(text.size(), 4) + text; }
inline std::string Join(const std::vector<std::string>& parts) {
  std::string all;
  for (const std::string& part : parts) all += part;
  return all;
}
inline std::string Tuple(const std::vector<std::string>& items) { return "(" + Join(items) + "t"; }
inline std::string List(const std::vector<std::string>& items) { return "](" + Join(items) + "e"; }
inline std::string Dict(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string all = "}(";
  for (const auto& [key, value] : items) all += key + value;
  return all + "u";
}
inline std::string Global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}
inline std::string Call(const std::string& global, const std::vector<std::string>& arguments) {
  return global + Tuple(arguments) + "R";
}
inline std::string Object(const std::string& global, const std::string& state) {
  return global + ")\x81" + state + "b";
}
inline std::string Pickled(const std::string& value) { return "\x80\x02" + value + "."; }

}  // namespace tessera::dcp::pickle_writer

#endif  // TESSERA_CHECKPOINT_DCP_PICKLE_WRITER_H_
