// error.h - the exceptions tarn throws, and the checks that throw them.
//
// Every error a user can cause is one sentence: "op: what must hold; got name=shape dtype device;
// hint". The parts are formatted only when the check fails, so a check costs one predictable
// branch.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace tarn {

/// Base of everything tarn throws. what() is one complete sentence.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
/// Sizes, strides or dimensions that do not fit the operation.
class ShapeError : public Error {
 public:
  using Error::Error;
};
/// A dtype the operation does not take, or dtypes that do not go together.
class DTypeError : public Error {
 public:
  using Error::Error;
};
/// A device that does not exist, is not built in, or does not match the other operands.
class DeviceError : public Error {
 public:
  using Error::Error;
};
/// An index, label or dimension outside its range.
class IndexError : public Error {
 public:
  using Error::Error;
};
/// An option or number outside its range.
class ValueError : public Error {
 public:
  using Error::Error;
};
/// Misuse of the tape: a freed graph, a saved tensor that was changed, a leaf written in place.
class AutogradError : public Error {
 public:
  using Error::Error;
};
/// A file that is missing, truncated, corrupt or cannot be written. Names the path.
class FileError : public Error {
 public:
  using Error::Error;
};
/// A device or the configured limit has no memory left. Lists the biggest owners.
class OutOfMemoryError : public Error {
 public:
  using Error::Error;
};
/// This build or device has no kernel for what was asked.
class UnsupportedError : public Error {
 public:
  using Error::Error;
};
/// A broken invariant of tarn itself: please report it.
class InternalError : public Error {
 public:
  using Error::Error;
};

namespace detail {

/// Streams the parts into one string; out of the hot path by design.
template <class... Parts>
[[gnu::cold, gnu::noinline]] std::string concat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

template <class E, class... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void fail(const Parts&... parts) {
  throw E(concat(parts...));
}

}  // namespace detail
}  // namespace tarn

/// Throws E with the concatenated parts unless cond holds. For what a user can cause.
#define TARN_CHECK_AS(E, cond, ...)                                         \
  do {                                                                      \
    if (__builtin_expect(!(cond), 0)) ::tarn::detail::fail<E>(__VA_ARGS__); \
  } while (0)
#define TARN_CHECK(cond, ...) TARN_CHECK_AS(::tarn::Error, cond, __VA_ARGS__)

/// For tarn's own invariants: on in Debug builds and in tests, free otherwise.
#ifdef TARN_ENABLE_ASSERTS
#define TARN_ASSERT(cond)                                                                         \
  TARN_CHECK_AS(::tarn::InternalError, cond, "internal error in tarn: ", #cond, " at ", __FILE__, \
                ":", __LINE__)
#else
#define TARN_ASSERT(cond) ((void)0)
#endif
