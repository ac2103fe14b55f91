// How a handler reads a call's attributes as XLA passes them, and the key by which it remembers the outcome.
//
// Everything that a handler checks and decodes follows from the names, types and bytes of a call's attributes
// and from the types and sizes of its buffers. XLA passes the same ones at every execution, so they form the
// key.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <type_traits>

#include "check.h"
#include "many.h"
#include "recall.h"
#include "xla/ffi/api/ffi.h"

namespace jaxgemm {

// All attributes of a call, not decoded.
struct WireAttributes {
  const XLA_FFI_Attrs* attrs;
};

// Looks attributes up as read_attributes() asks for them.
inline auto looked_up_in(const xla::ffi::Dictionary& dictionary) {
  return [&dictionary]<typename T>(const char* name, T& field) -> std::string {
    constexpr bool kIsArray = std::is_same_v<T, std::span<const int64_t>>;
    using Wire = std::conditional_t<kIsArray, xla::ffi::Span<const int64_t>, T>;
    const xla::ffi::ErrorOr<Wire> found = dictionary.get<Wire>(name);
    if (!found.has_value()) return found.error().message();
    if constexpr (kIsArray)
      field = {found->begin(), found->size()};
    else
      field = *found;
    return {};
  };
}

// Returns what is wrong with the attributes, or an empty string. `to` points into them.
inline std::string read(const WireAttributes& from, bool grouped, bool scaled, Attributes& to) {
  const xla::ffi::Dictionary dictionary(from.attrs);
  return read_attributes(to, dictionary.size(), grouped, scaled, looked_up_in(dictionary));
}
inline std::string read(const WireAttributes& from, ManyAttributes& to) {
  const xla::ffi::Dictionary dictionary(from.attrs);
  return read_attributes(to, dictionary.size(), looked_up_in(dictionary));
}

// Everything of a call but its buffers' addresses, as words: room for every call of this library, of which
// what is no option takes fewer than 72.
class WireKey : public Words<72 + kMaxOptions> {
 public:
  using Words::add;
  // False for attributes that no call of this library has: nested ones, or more than a key has room for.
  bool add(const WireAttributes& from) {
    const XLA_FFI_Attrs& x = *from.attrs;
    add(x.size);
    for (int64_t i = 0; i < x.size; ++i) {
      const XLA_FFI_ByteSpan value = bytes_of(x.types[i], x.attrs[i]);
      if (!value.ptr && value.len > 0) return false;
      const int dtype = x.types[i] == XLA_FFI_AttrType_STRING ? 0 : type_of(x.types[i], x.attrs[i]);
      add(static_cast<int64_t>(value.len) << 32 | static_cast<int64_t>(x.names[i]->len) << 16 | dtype << 8 |
          x.types[i]);
      add(*x.names[i]);
      add(value);
    }
    return fits();
  }

 private:
  // Packs eight bytes into each word. The last word holds the remaining bytes, some of them twice, which is
  // unambiguous because the key holds the length as well.
  void add(const XLA_FFI_ByteSpan& bytes) {
    const char* at = bytes.ptr;
    size_t left = bytes.len;
    for (; left >= 8; left -= 8, at += 8) add(load<int64_t>(at));
    if (left >= 4)
      add(int64_t{load<uint32_t>(at)} | int64_t{load<uint32_t>(at + left - 4)} << 32);
    else if (left > 0)
      add(load<uint8_t>(at) | load<uint8_t>(at + left / 2) << 8 | load<uint8_t>(at + left - 1) << 16);
  }
  template <typename T>
  static T load(const char* from) {
    T value;
    std::memcpy(&value, from, sizeof(T));
    return value;
  }
  static int type_of(XLA_FFI_AttrType type, const void* attr) {
    return type == XLA_FFI_AttrType_ARRAY ? static_cast<const XLA_FFI_Array*>(attr)->dtype
                                          : static_cast<const XLA_FFI_Scalar*>(attr)->dtype;
  }
  // The value's bytes; null with a length of 1 for an attribute of a kind that has none.
  static XLA_FFI_ByteSpan bytes_of(XLA_FFI_AttrType type, const void* attr) {
    const auto width = [&] {
      return xla::ffi::ByteWidth(static_cast<xla::ffi::DataType>(type_of(type, attr)));
    };
    switch (type) {
      case XLA_FFI_AttrType_ARRAY: {
        const auto& array = *static_cast<const XLA_FFI_Array*>(attr);
        return {static_cast<const char*>(array.data), array.size * width()};
      }
      case XLA_FFI_AttrType_SCALAR:
        return {static_cast<const char*>(static_cast<const XLA_FFI_Scalar*>(attr)->value), width()};
      case XLA_FFI_AttrType_STRING:
        return *static_cast<const XLA_FFI_ByteSpan*>(attr);
      default:
        return {nullptr, 1};
    }
  }
};

}  // namespace jaxgemm

template <>
struct xla::ffi::AttrDecoding<jaxgemm::WireAttributes> {
  using Type = jaxgemm::WireAttributes;
  static std::optional<Type> Decode(XLA_FFI_AttrType, void* attrs, DiagnosticEngine&) {
    return Type{static_cast<const XLA_FFI_Attrs*>(attrs)};
  }
};
