// checkpoint.cpp - one checkpoint: tensors, manifest, and the exchange of old and new folder.
#include "tarn/core/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <stdio.h>
#include <zlib.h>

#include "tarn/core/file.h"
#include "tarn/core/host.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/serialize.h"

namespace tarn {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kFormat = 1;
constexpr const char* kManifest = "manifest.json";
constexpr const char* kTemporary = ".tmp";
constexpr const char* kDiscarded = ".old";

std::string crc_text(uint32_t crc) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", crc);
  return text;
}

std::string crc_of(const std::string& bytes) {
  return crc_text(static_cast<uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size())));
}

// Size and CRC-32 of a file, as the manifest has them.
json digest(const std::string& path) {
  InputFile file("checkpoint", path);
  std::string block(size_t{1} << 20, '\0');
  uLong crc = 0;
  for (uint64_t left = file.size(); left > 0;) {
    const uint64_t bytes = std::min<uint64_t>(left, block.size());
    file.read(block.data(), bytes, "the file");
    crc = crc32_z(crc, reinterpret_cast<const Bytef*>(block.data()), bytes);
    left -= bytes;
  }
  return {{"bytes", file.size()}, {"crc32", crc_text(static_cast<uint32_t>(crc))}};
}

// ---- the manifest

// JSON has no NaN and no infinity: those are texts.
json to_json(const Checkpoint::Value& value) {
  const auto* number = std::get_if<double>(&value);
  if (number && !std::isfinite(*number)) {
    return {{"number", std::isnan(*number) ? "nan" : *number > 0 ? "inf" : "-inf"}};
  }
  return std::visit([](const auto& v) { return json(v); }, value);
}

Checkpoint::Value from_json(const json& value) {
  if (value.is_object()) {
    const std::string& text = value.at("number").get_ref<const std::string&>();
    if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
    return text == "inf" ? std::numeric_limits<double>::infinity()
                         : -std::numeric_limits<double>::infinity();
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number()) return value.get<double>();
  return value.get<std::string>();
}

// The manifest's text; its own checksum is that of the text without it.
std::string manifest_text(json manifest) {
  manifest["crc32"] = crc_of(manifest.dump());
  return manifest.dump(2) + "\n";
}

json make_manifest(const Checkpoint& c, json files) {
  json values = json::object(), generators = json::object();
  for (const auto& [name, value] : c.values) values[name] = to_json(value);
  for (const auto& [name, state] : c.generators) {
    generators[name] = {{"seed", state.seed}, {"offset", state.offset}};
  }
  return {{"format", kFormat}, {"step", c.step},   {"best", c.best},
          {"files", files},    {"values", values}, {"generators", generators}};
}

// What read() gives. What a file is to blame for becomes an error that names it, also where the
// JSON and the file system have errors of their own.
template <class F>
auto reading(const std::string& folder, F&& read) {
  try {
    return read();
  } catch (const json::exception& e) {
    detail::fail<FileError>("checkpoint: ", folder, "/", kManifest,
                            " is not what tarn writes: ", e.what());
  } catch (const fs::filesystem_error& e) {
    detail::fail<FileError>("checkpoint: cannot read ", folder, ": ", e.what());
  }
}

// The members of a manifest's member.
const json::object_t& members(const json& manifest, const char* name) {
  return manifest.at(name).get_ref<const json::object_t&>();
}

json read_manifest(const std::string& folder) {
  TARN_CHECK_AS(FileError, is_folder(folder), "checkpoint: no folder ", folder);
  const std::string path = folder + "/" + kManifest;
  TARN_CHECK_AS(FileError, is_there(path), "checkpoint: ", folder, " has no ", kManifest,
                ": it is not whole, or not a checkpoint");
  const std::string text = read_file("checkpoint", path);
  const json manifest = json::parse(text, nullptr, false);
  json bare = manifest;
  if (bare.is_object()) bare.erase("crc32");
  // All formats, later ones too, are the text that this function gives.
  TARN_CHECK_AS(FileError, bare.is_object() && manifest_text(bare) == text, "checkpoint: ", path,
                " is damaged: it does not have its own checksum");
  const int64_t format = manifest.at("format");
  TARN_CHECK_AS(ValueError, format <= kFormat, "checkpoint: ", folder, " has format ", format,
                ", of a newer version of tarn; this one reads up to ", kFormat);
  return manifest;
}

// What is wrong with a file; "" if nothing is.
std::string check_file(const std::string& path, const json& expected) {
  const std::string name = fs::path(path).filename().string();
  std::error_code error;
  if (!is_there(path)) return name + " is missing";
  if (!fs::is_regular_file(path, error)) return name + " is not a plain file";
  const uint64_t size = fs::file_size(path, error), bytes = expected.at("bytes");
  if (error) return name + " cannot be read: " + error.message();
  if (size != bytes) {
    return detail::concat(name, " has ", size, " bytes instead of ", bytes);
  }
  const std::string found = digest(path).at("crc32"), crc = expected.at("crc32");
  return found == crc ? "" : name + " has checksum " + found + " instead of " + crc;
}

// ---- folders

// Puts `fresh` where `folder` is. Linux exchanges two folders in one step; where the file system
// cannot, there is a moment without a checkpoint under the name.
void replace_folder(const std::string& fresh, const std::string& folder) {
  const std::string old = folder + kDiscarded;
  const bool replaces = fs::exists(folder);
  if (replaces &&
      renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) == 0) {
    sync_folder(folder_of(folder));
    detail::discard_path(fresh);
    return;
  }
  if (replaces) {
    fs::remove_all(old);
    fs::rename(folder, old);
  }
  fs::rename(fresh, folder);
  sync_folder(folder_of(folder));
  if (replaces) fs::remove_all(old);
}

void write_folder(const std::string& folder, const Checkpoint& c) {
  const std::error_code error = make_folders(folder);
  TARN_CHECK_AS(FileError, !error, "checkpoint: cannot make the folder ", folder, ": ",
                error.message());
  json files = json::object();
  for (const auto& [name, dict] : c.tensors) {
    TARN_CHECK_AS(ValueError, !name.empty() && name.find('/') == std::string::npos, "'", name,
                  "' cannot be the name of a file");
    if (dict.empty()) continue;
    const std::string file = name + ".safetensors";
    save_safetensors(folder + "/" + file, dict, {{"format", "pt"}});
    files[file] = digest(folder + "/" + file);
  }
  OutputFile manifest("checkpoint", folder + "/" + kManifest);
  manifest.write(manifest_text(make_manifest(c, files)));
  manifest.commit();
}

template <class T>
const T& value_of(const Checkpoint& c, const std::string& name, const char* type) {
  const auto found = c.values.find(name);
  const T* value = found == c.values.end() ? nullptr : std::get_if<T>(&found->second);
  TARN_CHECK_AS(FileError, value, "checkpoint: that of step ", c.step, " has no ", type, " '", name,
                "': another program wrote it");
  return *value;
}

// x in memory of its own on the host.
Tensor host_copy(const Tensor& x) {
  if (!x.defined()) return x;
  const Tensor host = host_row_major(x);
  return host.data() == x.data() ? raw::clone(host) : host;
}

}  // namespace

const TensorDict& Checkpoint::dict(const std::string& name) const {
  static const TensorDict none;
  const auto found = tensors.find(name);
  return found == tensors.end() ? none : found->second;
}

int64_t Checkpoint::integer(const std::string& name) const {
  return value_of<int64_t>(*this, name, "integer");
}

double Checkpoint::number(const std::string& name) const {
  return value_of<double>(*this, name, "number");
}

const std::string& Checkpoint::text(const std::string& name) const {
  return value_of<std::string>(*this, name, "text");
}

PhiloxState Checkpoint::generator(const std::string& name) const {
  const auto found = generators.find(name);
  TARN_CHECK_AS(FileError, found != generators.end(), "checkpoint: that of step ", step,
                " has no generator '", name, "': another program wrote it");
  return found->second;
}

Checkpoint Checkpoint::copy() const {
  Checkpoint c = *this;
  for (auto& [name, dict] : c.tensors) {
    TensorDict copied;
    for (const auto& [key, tensor] : dict) copied.add(key, host_copy(tensor));
    dict = std::move(copied);
  }
  return c;
}

void save_checkpoint(const std::string& folder, const Checkpoint& checkpoint) {
  const std::string fresh = folder + kTemporary;
  try {
    fs::remove_all(fresh);
    write_folder(fresh, checkpoint);
    replace_folder(fresh, folder);
  } catch (const ValueError& e) {
    detail::discard_path(fresh);
    detail::fail<ValueError>("checkpoint: cannot save ", folder, ": ", e.what());
  } catch (const std::exception& e) {
    detail::discard_path(fresh);
    std::error_code ignored;
    detail::fail<FileError>("checkpoint: cannot save ", folder, ": ", e.what(),
                            fs::exists(folder, ignored) ? "; the one saved before is whole" : "");
  }
}

namespace {

Checkpoint load(const std::string& folder, const std::vector<std::string>& only) {
  const json manifest = read_manifest(folder);
  Checkpoint c{.step = manifest.at("step"), .best = manifest.at("best")};
  std::string problems;
  std::vector<std::string> names;
  for (const auto& [file, expected] : members(manifest, "files")) {
    const std::string name = fs::path(file).stem().string();
    if (!only.empty() && std::count(only.begin(), only.end(), name) == 0) continue;
    const std::string problem = check_file(folder + "/" + file, expected);
    if (!problem.empty()) problems += (problems.empty() ? "" : "; ") + problem;
    names.push_back(name);
  }
  TARN_CHECK_AS(FileError, problems.empty(), "checkpoint: ", folder, " is damaged: ", problems);
  for (const std::string& name : names) {
    c.tensors[name] = load_safetensors(folder + "/" + name + ".safetensors").tensors;
  }
  for (const auto& [name, value] : members(manifest, "values")) c.values[name] = from_json(value);
  for (const auto& [name, state] : members(manifest, "generators")) {
    c.generators[name] = {.seed = state.at("seed"), .offset = state.at("offset")};
  }
  return c;
}

}  // namespace

Checkpoint load_checkpoint(const std::string& folder, const std::vector<std::string>& only) {
  return reading(folder, [&] { return load(folder, only); });
}

namespace detail {

void discard_path(const std::string& path) {
  std::error_code ignored;
  const std::string away = path + kDiscarded;
  fs::remove_all(away, ignored);
  std::error_code error;
  fs::rename(path, away, error);
  fs::remove_all(error ? path : away, ignored);
}

bool is_best_checkpoint(const std::string& folder) {
  try {
    return reading(folder, [&] { return read_manifest(folder).at("best").get<bool>(); });
  } catch (const Error&) {
    return false;
  }
}

bool is_checkpoint_leftover(const std::string& name) {
  return name.ends_with(kTemporary) || name.ends_with(kDiscarded);
}

}  // namespace detail
}  // namespace tarn
