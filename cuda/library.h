// library.h - vendor libraries that are loaded at run time: cuBLAS, cuDNN, NCCL.
//
// A build needs a library's headers only, and a program starts without the library. Use:
//
//   Library library({.name = "cuBLAS", .files = {"libcublas.so.13"}, .variable = "TARN_CUBLAS",
//                    .without = "matrix products run on tarn's own kernels, many times slower"});
//   library.bind(api.create, "cublasCreate_v2");
//   if (!library.usable()) ...  // use something else
//
// The environment decides: <variable>=off never loads it, =on makes its absence an error, =auto (or
// nothing) makes it a warning, once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tarn::cuda {

enum class LibraryUse : uint8_t { kOff, kAuto, kOn };
/// What the environment says. Throws ValueError if `variable` is none of off, on, auto.
LibraryUse library_use(const char* variable);

struct LibrarySpec {
  const char* name;
  std::vector<std::string> files;  ///< sonames in order of preference
  const char* variable;            ///< environment variable that switches it
  const char* without;             ///< what happens without it, as a clause
  /// What it opens by itself, by name only: opened before, so that the loader, which keeps them by
  /// name, also knows those in the toolkit's folders.
  std::vector<std::string> needs = {};
};

/// One library, opened as a whole or not at all. Looked for where the dynamic loader looks
/// (LD_LIBRARY_PATH, the system's cache), then in the toolkit's folders; stays open for ever.
class Library {
 public:
  explicit Library(LibrarySpec spec);

  /// Points `function` to a symbol. Without it the whole library counts as missing.
  template <class F>
  void bind(F*& function, const char* symbol) {
    function = reinterpret_cast<F*>(find(symbol));
  }

  /// After all bind calls: true if the library and every symbol are there. If not: throws Error if
  /// it was switched on, else says so on stderr unless it was switched off.
  bool usable() const;

  /// Where it was found; "" if it was not.
  const std::string& path() const { return path_; }
  /// Why it is not usable, as one sentence; "" if it is.
  const std::string& problem() const { return problem_; }

 private:
  void open();
  void* find(const char* symbol);

  LibrarySpec spec_;
  LibraryUse use_;
  void* handle_ = nullptr;
  std::string path_;
  std::string problem_;
};

}  // namespace tarn::cuda
