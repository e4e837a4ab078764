// library.cpp - finds and opens vendor libraries.
#include "tarn/cuda/library.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include <dlfcn.h>
#include <unistd.h>

#include "tarn/core/error.h"
#if defined(TARN_CUDA_EMU)
#include "tarn/cuda/emu/hooks.h"
#endif

namespace tarn::cuda {
namespace {

// Folders besides the dynamic loader's own, most specific first.
std::vector<std::string> toolkit_folders() {
  std::vector<std::string> folders;
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    const char* root = std::getenv(variable);
    if (root && *root) folders.push_back(std::string(root) + "/lib64");
  }
#ifdef TARN_CUDA_LIBRARY_DIR
  folders.emplace_back(TARN_CUDA_LIBRARY_DIR);
#endif
  folders.emplace_back("/usr/local/cuda/lib64");
  std::vector<std::string> once;
  for (const std::string& folder : folders) {
    if (std::find(once.begin(), once.end(), folder) == once.end()) once.push_back(folder);
  }
  return once;
}

std::string joined(const std::vector<std::string>& parts, const char* separator) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : separator) + part;
  return text;
}

std::vector<std::string> places_of(const std::string& file,
                                   const std::vector<std::string>& folders) {
  std::vector<std::string> places{file};
  if (file.find('/') != std::string::npos) return places;
  for (const std::string& folder : folders) places.push_back(folder + "/" + file);
  return places;
}

struct Opened {
  void* handle;
  std::string text;  // where; or what the loader says about a file that is there
};

// The first that opens.
Opened open_first(const std::vector<std::string>& places) {
  std::string broken;
  for (const std::string& place : places) {
    if (void* handle = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) return {handle, place};
    const char* said = dlerror();
    if (broken.empty() && access(place.c_str(), F_OK) == 0) broken = said ? said : place;
  }
  return {nullptr, broken};
}

}  // namespace

LibraryUse library_use(const char* variable) {
  const char* text = std::getenv(variable);
  const std::string_view value = text ? text : "";
  if (value == "off") return LibraryUse::kOff;
  if (value == "on") return LibraryUse::kOn;
  TARN_CHECK_AS(ValueError, value.empty() || value == "auto", variable,
                " must be on, off or auto; got '", value, "'");
  return LibraryUse::kAuto;
}

Library::Library(LibrarySpec spec) : spec_(std::move(spec)), use_(library_use(spec_.variable)) {
  if (use_ == LibraryUse::kOff) {
    problem_ = tarn::detail::concat(spec_.name, " is switched off by ", spec_.variable, "=off");
    return;
  }
#if defined(TARN_CUDA_EMU)  // the real libraries find no GPU
  if (emu::stands_in_for(spec_.name)) {
    path_ = "cuda/emu";
    return;
  }
#endif
  open();
}

void Library::open() {
  const std::vector<std::string> folders = toolkit_folders();
  for (const std::string& file : spec_.needs) open_first(places_of(file, folders));
  std::string broken;  // what the loader says about a file that is there
  for (const std::string& file : spec_.files) {
    const Opened opened = open_first(places_of(file, folders));
    if (opened.handle) {
      handle_ = opened.handle;
      path_ = opened.text;
      return;
    }
    if (broken.empty()) broken = opened.text;
  }
  problem_ = tarn::detail::concat(spec_.name, " is missing: ", joined(spec_.files, " or "),
                                  " was not found in the loader's path (LD_LIBRARY_PATH) nor in ",
                                  joined(folders, ", "));
  if (!broken.empty()) {
    problem_ = tarn::detail::concat(spec_.name, " does not load: ", broken);
  }
}

void* Library::find(const char* symbol) {
#if defined(TARN_CUDA_EMU)
  if (path_ == "cuda/emu") {
    void* found = emu::library_symbol(symbol);
    if (!found) problem_ = tarn::detail::concat(spec_.name, ": the emulator has no ", symbol);
    return found;
  }
#endif
  if (!handle_) return nullptr;
  void* found = dlsym(handle_, symbol);
  if (!found && problem_.empty()) {
    problem_ =
        tarn::detail::concat(spec_.name, " is of another version: ", path_, " has no ", symbol);
  }
  return found;
}

bool Library::usable() const {
  if (problem_.empty()) return true;
  TARN_CHECK(use_ != LibraryUse::kOn, "cuda: ", problem_, "; it was required by ", spec_.variable,
             "=on");
  if (use_ == LibraryUse::kAuto) {
    std::fprintf(stderr, "tarn: %s; %s (%s=off silences this)\n", problem_.c_str(), spec_.without,
                 spec_.variable);
  }
  return false;
}

}  // namespace tarn::cuda
