// unicode_tables.h - the tables that unicode_tables.py writes: pairs "first, last" of code points.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tarn::data::detail {

extern const uint32_t kLetters[], kNumbers[], kPunctuation[], kControl[], kMarks[];
/// How many pairs each has.
extern const size_t kLettersCount, kNumbersCount, kPunctuationCount, kControlCount, kMarksCount;

/// Words between spaces, UTF-8: what comes out, '~', every code point that becomes it.
extern const char kFolds[];

}  // namespace tarn::data::detail
