// cuda_library_test.cpp - vendor libraries are found, or their absence is told in one line.
#include <cstdlib>
#include <string>

#include "tests_throws.h"
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "tarn/core/error.h"
#include "tarn/cuda/blas_api.h"
#include "tarn/cuda/library.h"
#if TARN_HAVE_NCCL
#include "tarn/dist/nccl_group_api.h"
#endif

namespace tarn::cuda {
namespace {

// The C library's mathematics stand for a vendor's: every machine has them.
constexpr const char* kPresent = "libm.so.6";
constexpr const char* kVariable = "TARN_TEST_LIBRARY";

class LibraryTest : public testing::Test {
 protected:
  void TearDown() override { unsetenv(kVariable); }
  static void set(const char* value) { setenv(kVariable, value, 1); }
  static LibrarySpec spec(std::vector<std::string> files) {
    return {"cuTest", std::move(files), kVariable, "everything is slower"};
  }
  static std::string warning_of(const Library& library) {
    testing::internal::CaptureStderr();
    EXPECT_FALSE(library.usable());
    return testing::internal::GetCapturedStderr();
  }
};

TEST_F(LibraryTest, present_library_binds_its_symbols) {
  Library library(spec({"libtarn-absent.so.1", kPresent}));
  double (*cosine)(double) = nullptr;
  library.bind(cosine, "cos");
  ASSERT_TRUE(library.usable());
  EXPECT_EQ(library.path(), kPresent);
  EXPECT_EQ(library.problem(), "");
  EXPECT_EQ(cosine(0.0), 1.0);
}

TEST_F(LibraryTest, what_it_opens_by_itself_is_open_before) {
  constexpr const char* kNeeded = "libBrokenLocale.so.1";  // of the C library; nobody uses it
  if (void* open = dlopen(kNeeded, RTLD_NOW | RTLD_NOLOAD)) GTEST_SKIP() << "open at " << open;
  LibrarySpec with = spec({kPresent});
  with.needs = {"libtarn-absent.so.1", kNeeded};
  EXPECT_TRUE(Library(with).usable());
  EXPECT_NE(dlopen(kNeeded, RTLD_NOW | RTLD_NOLOAD), nullptr);
}

TEST_F(LibraryTest, missing_library_is_one_line_that_says_what_was_looked_for) {
  const std::string text = warning_of(Library(spec({"libtarn-absent.so.1"})));
  EXPECT_EQ(text.find("tarn: cuTest is missing: libtarn-absent.so.1 was not found in the loader's "
                      "path (LD_LIBRARY_PATH) nor in "),
            0u)
      << text;
  EXPECT_NE(text.find("; everything is slower (TARN_TEST_LIBRARY=off silences this)\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find('\n'), text.size() - 1);
}

TEST_F(LibraryTest, missing_symbol_makes_the_library_unusable) {
  Library library(spec({kPresent}));
  void (*function)() = nullptr;
  library.bind(function, "cublasCreate_v2");
  EXPECT_EQ(function, nullptr);
  EXPECT_NE(warning_of(library).find("cuTest is of another version: libm.so.6 has no "
                                     "cublasCreate_v2; everything is slower"),
            std::string::npos);
}

TEST_F(LibraryTest, unloadable_file_reports_what_the_loader_says) {
  const std::string text = warning_of(Library(spec({TARN_SOURCE_DIR "/CMakeLists.txt"})));
  EXPECT_NE(text.find("cuTest does not load: "), std::string::npos) << text;
  EXPECT_NE(text.find("CMakeLists.txt: "), std::string::npos) << text;
}

TEST_F(LibraryTest, on_makes_absence_an_error) {
  set("on");
  const Library library(spec({"libtarn-absent.so.1"}));
  EXPECT_THROWS_WITH(library.usable(), Error, "cuda: cuTest is missing: libtarn-absent.so.1");
  EXPECT_THROWS_WITH(library.usable(), Error, "it was required by TARN_TEST_LIBRARY=on");
}

TEST_F(LibraryTest, off_neither_loads_nor_warns) {
  set("off");
  Library library(spec({kPresent}));
  double (*cosine)(double) = nullptr;
  library.bind(cosine, "cos");
  EXPECT_EQ(warning_of(library), "");
  EXPECT_EQ(cosine, nullptr);
  EXPECT_EQ(library.problem(), "cuTest is switched off by TARN_TEST_LIBRARY=off");
}

TEST_F(LibraryTest, other_values_of_the_switch_are_refused) {
  set("maybe");
  const LibrarySpec wanted = spec({kPresent});
  EXPECT_THROWS_WITH(Library library(wanted), ValueError,
                     "TARN_TEST_LIBRARY must be on, off or auto; got 'maybe'");
}

#if TARN_HAVE_CUBLAS
// Needs no GPU: without one it is the first call that fails, not the loading.
TEST(CudaBlasApi, the_toolkits_cublas_has_every_function_that_is_called) {
  const LibrarySpec spec{"cuBLAS",
                         {tarn::detail::concat("libcublas.so.", CUBLAS_VER_MAJOR)},
                         "TARN_CUBLAS",
                         "this test does nothing"};
  if (!Library(spec).usable()) GTEST_SKIP() << "not on this machine, or switched off";
  const BlasApi* api = blas_api();
  ASSERT_NE(api, nullptr);
  EXPECT_NE(api->cublasGemmEx, nullptr);
  EXPECT_EQ(api->has_lt, library_use("TARN_CUBLASLT") != LibraryUse::kOff);
}
#endif

#if TARN_HAVE_NCCL
// Needs no GPU: with the toolkit's library, this opens the real one.
TEST(NcclLibrary, opens_with_all_that_is_called_or_says_what_is_missing) {
  try {
    int version = 0;
    EXPECT_EQ(dist::nccl_api().version(&version), ncclSuccess);
    EXPECT_GE(version, 21800);
  } catch (const UnsupportedError& error) {
    EXPECT_EQ(std::string(error.what()).find("nccl: NCCL is missing: libnccl.so.2 was not found"),
              0u)
        << error.what();
  }
}
#endif

}  // namespace
}  // namespace tarn::cuda
