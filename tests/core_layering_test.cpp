// core_layering_test.cpp - the arrows between folders, file lengths and banners, read from source.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxLines = 420;

// Which folders a folder may include. apps and tests may include all.
const std::map<std::string, std::set<std::string>> kAllowed = {
    {"core", {}},
    {"autograd", {"core"}},
    {"nn", {"autograd", "core"}},
    {"optim", {"autograd", "core"}},
    {"data", {"core"}},
    {"dist", {"optim", "nn", "autograd", "core"}},
    {"cuda", {"core"}},
};

struct Source {
  std::string name;    // "core/cpu/copy.cpp"
  std::string folder;  // "core"
  std::vector<std::string> lines;
  bool is_header() const { return name.ends_with(".h") || name.ends_with(".cuh"); }
};

const std::vector<Source>& sources() {
  static const std::vector<Source> all = [] {
    std::vector<Source> found;
    const fs::path root = TARN_SOURCE_DIR;
    for (const char* folder :
         {"core", "autograd", "nn", "optim", "data", "dist", "cuda", "apps", "tests"}) {
      if (!fs::exists(root / folder)) continue;
      for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
        const std::string extension = entry.path().extension();
        if (extension != ".h" && extension != ".cpp" && extension != ".cu" && extension != ".cuh") {
          continue;
        }
        Source source{fs::relative(entry.path(), root), folder, {}};
        std::ifstream file(entry.path());
        for (std::string line; std::getline(file, line);) source.lines.push_back(line);
        found.push_back(std::move(source));
      }
    }
    return found;
  }();
  return all;
}

// Calls visit(source, line number, included path) for every #include.
template <class F>
void for_each_include(F visit) {
  static const std::regex pattern(R"(^\s*#\s*include\s*["<]([^">]+)[">])");
  for (const Source& source : sources()) {
    for (size_t i = 0; i < source.lines.size(); ++i) {
      std::smatch match;
      if (std::regex_search(source.lines[i], match, pattern)) visit(source, i + 1, match[1].str());
    }
  }
}

std::string place(const Source& source, size_t line) {
  return source.name + ":" + std::to_string(line);
}

TEST(Layering, folders_include_only_what_the_picture_allows) {
  ASSERT_GT(sources().size(), 20u);
  for_each_include([](const Source& source, size_t line, const std::string& path) {
    const auto allowed = kAllowed.find(source.folder);
    if (allowed == kAllowed.end() || !path.starts_with("tarn/")) return;
    const std::string target = path.substr(5, path.find('/', 5) - 5);
    const bool knows_cuda =
        source.name == "core/registry.cpp" || source.name.starts_with("dist/nccl_group");
    EXPECT_TRUE(target == source.folder || allowed->second.count(target) ||
                (knows_cuda && target == "cuda"))
        << place(source, line) << ": " << source.folder << "/ must not include " << path;
  });
}

TEST(Layering, includes_of_tarn_start_at_the_include_tree) {
  for_each_include([](const Source& source, size_t line, const std::string& path) {
    const std::string first = path.substr(0, path.find('/'));
    EXPECT_FALSE(path.find("..") != std::string::npos ||
                 (kAllowed.count(first) && path.find('/') != std::string::npos))
        << place(source, line) << ": write \"tarn/...\" instead of \"" << path << "\"";
  });
}

TEST(Layering, cuda_headers_are_included_in_cuda_only) {
  for_each_include([](const Source& source, size_t line, const std::string& path) {
    const bool cuda = path.starts_with("cuda") || path.starts_with("cublas") ||
                      path.starts_with("cudnn") || path.starts_with("nccl");
    const bool nccl = source.name.starts_with("dist/nccl_group") && path.starts_with("nccl");
    const bool test = source.name.starts_with("tests/cuda_");
    EXPECT_FALSE(cuda && !nccl && !test && source.folder != "cuda")
        << place(source, line) << ": only cuda/ may include " << path;
  });
}

TEST(Layering, public_headers_are_free_of_third_party_headers) {
  for_each_include([](const Source& source, size_t line, const std::string& path) {
    const bool internal = source.name.starts_with("core/cpu/") || source.folder == "cuda" ||
                          source.folder == "apps" || source.folder == "tests";
    if (!source.is_header() || internal) return;
    for (const char* library :
         {"Eigen/", "nlohmann/", "fmt/", "dnnl", "oneapi/", "stb/", "zlib", "gloo/", "omp.h"}) {
      EXPECT_FALSE(path.starts_with(library))
          << place(source, line) << ": a public header must not include " << path;
    }
  });
}

TEST(Layering, files_stay_short) {
  for (const Source& source : sources()) {
    EXPECT_LE(source.lines.size(), kMaxLines) << source.name << " is longer than a file should be";
  }
}

TEST(Layering, every_file_says_in_its_first_line_what_it_is) {
  for (const Source& source : sources()) {
    const std::string banner = "// " + fs::path(source.name).filename().string() + " - ";
    ASSERT_FALSE(source.lines.empty()) << source.name << " is empty";
    EXPECT_TRUE(source.lines[0].starts_with(banner))
        << source.name << ":1: expected \"" << banner << "...\"; got \"" << source.lines[0] << "\"";
  }
}

TEST(Layering, headers_are_guarded) {
  for (const Source& source : sources()) {
    if (!source.is_header()) continue;
    EXPECT_TRUE(std::find(source.lines.begin(), source.lines.end(), "#pragma once") !=
                source.lines.end())
        << source.name << " lacks #pragma once";
  }
}

}  // namespace
